"""Runs of prompts with given tokens, which come before given passes, on the dry device."""

import json
from pathlib import Path
from typing import NamedTuple

from kvscope.judge.records import Records, read_records
from kvscope_explain.misses import accounts_of
from kvscope_explain.tokens import Account, Accounts
from tests.engine.conftest import directory_of, last_of_each_key
from tests.warm import Warm

SMALL = (
    *("device=dry", "model.layers=2", "profiler=none", "seed=3", "batching=mixed"),
    *("engine.max_model_len=288", "engine.max_num_batched_tokens=320", "engine.max_num_seqs=8"),
    *("cache.admission=vllm", "cache.watermark=0", "cache.block_size=16", "cache.blocks=20"),
    "cache.prefix_caching=true",
)


class Prompt(NamedTuple):
    """A prompt: the pass before which it comes, its tokens, each a number, and its outputs."""

    arrival_pass: int
    tokens: list[int]
    outputs: int = 1


def serve(warm: Warm, *words: str) -> Records:
    """The run of SMALL with these settings."""
    directory = directory_of(warm, last_of_each_key([*SMALL, *words]), "causes")
    return read_records(directory.absolute())


def serve_prompts(warm: Warm, file: Path, prompts: list[Prompt], *words: str) -> Records:
    """The run of prompts, in the order of their passes."""
    rows = [
        {
            "timestamp": 0,
            "arrival_pass": prompt.arrival_pass,
            "input_length": len(prompt.tokens),
            "output_length": prompt.outputs,
            "hash_ids": prompt.tokens,
        }
        for prompt in prompts
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    by_pass = ("workload=mooncake", f"workload.path={file}", "workload.arrival=passes")
    return serve(warm, *by_pass, "workload.trace_block_tokens=1", *words)


def accounts(run: Records) -> Accounts:
    """The accounts of the first repeat."""
    known = accounts_of(run.of_repeat(0))
    assert known is not None
    return known


def causes(run: Records, request: int) -> dict[str, int]:
    """The tokens of each cause of a request."""
    account: Account = accounts(run).of(str(request))
    return dict(account.causes)
