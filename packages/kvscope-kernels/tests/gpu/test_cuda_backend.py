"""The CUDA backend serves requests in the real vLLM, and its events match the served requests."""

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from cuda_cases import Case

from kvscope.run.environment import REQUIRED
from kvscope.tables.runschema import TracingRecord
from kvscope_kernels.collect.clock import EventClock
from kvscope_kernels.collect.flushes import parse_flush
from kvscope_kernels.kv_events import FLUSH_VERSION
from kvscope_kernels.oracles.judge import Judge
from kvscope_kernels.oracles.run_facts import RunFacts
from tests.unit.kv_flushes import with_columns

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def run(triton, require) -> dict:
    require("vLLM", importlib.util.find_spec("vllm") is not None, "run `make env`")
    done = subprocess.run(
        [sys.executable, "-m", "cuda_engine_run"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        env=os.environ | REQUIRED | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_tokens_are_those_of_plain_attention(run: dict):
    assert run["tokens"] == run["strided_tokens"] == run["expected"]
    assert len(run["tokens"]) == 3


@pytest.mark.parametrize(("passes", "head_stride"), [("passes", 1), ("strided", 2)])
def test_every_layer_of_every_pass_is_recorded_as_it_was_scheduled(run, passes, head_stride):
    kinds = set()
    for pass_ in run[passes]:
        rows = pass_["rows"]
        kinds.add(tuple(sorted({row["new"] > 1 for row in rows})))
        case = Case(
            tuple(row["context"] for row in rows),
            tuple(row["new"] for row in rows),
            *(8, 2, 32, 12),
            head_stride=head_stride,
        )
        assert case.tile == run["tile_tokens"]
        assert sorted(pass_["layers"]) == ["0", "1"]
        for recorded in pass_["layers"].values():
            events = with_columns(recorded)["events"]
            names = ("kind", "row", "kv_head", "block_position", "offset_tokens", "tokens")
            result = Counter(zip(*(events[name] for name in names), strict=True))
            # All heads at once is -1 in the file, and 0xFFFF in a record.
            writes = {(k, r, -1, *rest): n for (k, r, _, *rest), n in case.writes().items()}
            assert result == writes | case.reads()
            for row, position, block in zip(
                *(events[name] for name in ("row", "block_position", "block")), strict=True
            ):
                assert rows[row]["blocks"][position] == block
    assert {(True,), (False,), (False, True)} <= kinds  # prefill, decode, and both in a pass


def test_kernels_and_segments_are_complete(run: dict):
    for pass_ in run["passes"] + run["strided"]:
        for recorded in pass_["layers"].values():
            assert [kernel["kernel"] for kernel in recorded["kernels"]] == ["write", "attention"]
            segments, timers = recorded["segments"], recorded["kernels"]
            assert sum(segments["events"]) == len(with_columns(recorded)["events"]["kind"])
            assert not any(segments["dropped"])
            assert min(segments["start_timer"]) == 0
            for kernel, start, end in zip(
                *(segments[name] for name in ("kernel", "start_timer", "end_timer")), strict=True
            ):
                assert timers[kernel]["start_ticks"] <= start < end <= timers[kernel]["end_ticks"]


def test_no_oracle_is_violated(run: dict):
    clock = {"ns_per_tick": 1.0, "samples": [{"ticks": 0, "host_ns": 0, "uncertainty_ns": 0}]}
    tracing = TracingRecord.model_validate({"name": "full", "clock": {"name": "timer"} | clock})
    judge = Judge(RunFacts(EventClock.of_run(tracing, Path("run.json"))))
    for step, one in enumerate(run["passes"]):
        for layer, recorded in one["layers"].items():
            head = head_of(one["rows"], run["tile_tokens"]) | {"step": step, "layer": int(layer)}
            judge.add(parse_flush(json.dumps(head | recorded).encode(), Path("events"), 1))
    assert not [name for name, found in judge.account().items() if found["violations"]]


def head_of(rows: list[dict], tile: int) -> dict:
    """The batch that a flush states."""
    phases = ["decode" if row["context"] and row["new"] == 1 else "prefill" for row in rows]
    return {
        **{
            "version": FLUSH_VERSION,
            "repeat": 0,
            "block_size": 12,
            "tile_tokens": tile,
            "kv_heads": [0, 1],
        },
        "requests": [str(row) for row in range(len(rows))],
        "phase": phases[0] if len({*phases}) == 1 else "mixed",
        "phases": phases,
        "context_tokens": [row["context"] for row in rows],
        "scheduled_tokens": [row["new"] for row in rows],
        "block_table": [row["blocks"] for row in rows],
    }
