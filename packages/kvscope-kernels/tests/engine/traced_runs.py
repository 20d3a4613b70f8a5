"""Random experiments with KV events traced and not, several engines in a row in one process."""

import hashlib
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import torch

from kvscope.base.files import read_json
from kvscope.collect.collector import collect_run
from kvscope.engine.devices.vllm_platform import VllmPlatform
from kvscope.engine.layers import transformer_blocks
from kvscope.engine.vllm import build
from kvscope.plan.experiment import Experiment, dump
from kvscope.plan.grid import expand
from kvscope.run import virtual
from kvscope.run.locks import SUPERVISOR_LOCK, hold_lock
from kvscope.tables.runfile import COMPLETE, SESSION_FILE, file_records, write_run
from tests.engine.conftest import ROOT

COMMON = ("profiler=none", "repeats=2", "warmup=0", "engine.max_model_len=160")


def drawn(seed: int, models: list[str]) -> list[str]:
    """Settings of a random experiment: model, blocks, policies, lengths."""
    draw = random.Random(seed)
    size = draw.choice([1, 4, 16, 32, 61, 128, 256])
    tokens = draw.choice([200, 400, 2000])
    overflow = draw.choice([["overflow=recompute"], ["overflow=swap", "overflow.host_blocks=256"]])
    batching = draw.choice(
        [
            ["batching=mixed"],
            ["batching=prefill_first"],
            ["batching=chunked", f"batching.chunk_tokens={draw.choice([24, 40, 100])}"],
        ]
    )
    return [
        f"model={models[seed % len(models)]}",
        f"model.dtype={draw.choice(['float32', 'float32', 'bfloat16'])}",
        f"cache.block_size={size}",
        f"cache.blocks={max(-(-tokens // size), -(-160 // size))}",
        f"cache.layout={draw.choice(['by_layer', 'by_block'])}",
        f"device.threads={draw.choice([1, 2, 3])}",
        *batching,
        *overflow,
        *("workload=uniform", f"workload.num_requests={draw.randint(3, 7)}"),
        *("workload.min_tokens=20", "workload.max_tokens=150"),
        f"workload.prompt_to_output_ratio={draw.choice([0.5, 2, 5])}",
        f"seed={seed}",
    ]


def experiment(*overrides: str) -> Experiment:
    return expand(None, [*COMMON, *overrides], ROOT / "config").experiments[0].experiment


@contextmanager
def digested(platform: VllmPlatform, directory: Path) -> Iterator[build.VllmEngine]:
    """An engine whose transformer blocks' outputs are all hashed into `digest`."""
    with build.run_engine(platform, directory) as engine:
        engine.llm.apply_model(hash_outputs)
        yield engine


digest = hashlib.sha256()


def hash_outputs(model: torch.nn.Module) -> None:
    for block in transformer_blocks(model):
        block.register_forward_hook(add)


def add(_block: torch.nn.Module, _given: Any, output: Any) -> None:
    for tensor in output if isinstance(output, tuple) else (output,):
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def run(chosen: Experiment, directory: Path) -> tuple[str, pd.Series]:
    """Run it here; the digest of all its blocks' outputs, and its requests' tokens."""
    global digest
    digest = hashlib.sha256()
    (directory / "experiment.yaml").write_text(dump(chosen), encoding="utf-8")
    import numba

    numba.set_num_threads(min(chosen.device.threads, numba.config.NUMBA_NUM_THREADS))
    with (
        hold_lock(directory, SUPERVISOR_LOCK),  # without it the session would end itself
        mock.patch.object(VllmPlatform, "run_engine", digested),
    ):
        assert virtual.serve_all(directory) is None
    facts = read_json(directory / SESSION_FILE)
    assert facts["reason"] is None, facts["reason"]
    facts |= {"experiment_id": chosen.id, "status": COMPLETE, "reason": None}
    write_run(directory, facts | {"files": file_records(directory)})
    requests = pd.read_parquet(directory / "requests.parquet")
    return digest.hexdigest(), requests.set_index(["repeat", "request_id"])["output_sha256"]


def compared(seed: int, models: list[str]) -> dict[str, Any]:
    """A random experiment: traced, untraced, and with plain attention.

    Its events, the oracles that are violated, whether every transformer block gave the same bits
    with tracing and without, and the share of requests with the tokens of plain attention.
    """
    settings = drawn(seed, models)
    kinds = {
        "traced": ["tracing=full"],
        "untraced": ["engine.attention=instrumented"],
        "plain": ["engine.attention=paged"],
    }
    result = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, more in kinds.items():
            directory = Path(temporary, name)
            directory.mkdir()
            result[name] = run(experiment(*settings, *more), directory)
        directory = Path(temporary, "traced")
        collect_run(directory, directory)
        verdict = read_json(directory / "collect.json")["kv_events"]
        tracing = read_json(directory / "run.json")["tracing"]
    return {
        "seed": seed,
        "settings": " ".join(settings),
        "events": verdict["rows"],
        "dropped": tracing["dropped_events"],
        "workers": tracing["workers"],
        "violated": {k: v["first"] for k, v in verdict["oracles"].items() if v["violations"]},
        "same_bits": result["traced"][0] == result["untraced"][0],
        "same_tokens": bool((result["traced"][1] == result["untraced"][1]).all()),
        "plain_tokens": float((result["traced"][1] == result["plain"][1]).mean()),
    }
