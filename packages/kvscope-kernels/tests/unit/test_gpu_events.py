"""Needs of KV events on a GPU in a plan."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.base.errors import EXIT_DONE, BadInput
from kvscope.cli import main as cli
from kvscope.plan.gpu_estimate import usable_bytes
from kvscope.plan.gpu_memory import gib_text
from kvscope.plan.needs import in_words
from kvscope_kernels.planning import events_of_a_repeat, events_on_disk
from tests.unit.test_plan_gpu import GIB, OF_CONFIG, memory, needs, planned, printed


@settings(max_examples=30, deadline=None)
@given(
    key=st.sampled_from(
        [
            *("cache.blocks", "engine.max_num_batched_tokens", "engine.max_num_seqs"),
            *("model.layers", "model.intermediate_size", "model.vocab_size"),
            "tracing.buffer_events",
        ]
    ),
    values=st.tuples(st.integers(256, 2048), st.integers(0, 2048)),
)
def test_more_of_anything_needs_no_less_memory(key: str, values: tuple[int, int]) -> None:
    common = ("tracing=full", "engine.max_model_len=256", "engine.max_num_seqs=1")
    words = ("engine.max_num_batched_tokens=4096", "workload.prompt_tokens=8", *common)
    rest = [word for word in words if not word.startswith(f"{key}=")]
    less, more = (memory(*rest, f"{key}={v}") for v in (values[0], sum(values)))
    assert less.total_bytes <= more.total_bytes
    assert all(a <= b for a, b in zip(vars(less).values(), vars(more).values(), strict=True))


def test_events_of_one_request_are_counted_by_hand() -> None:
    """A prompt of 40 tokens and 3 that come out, in blocks of 16, 2 layers, 4 of 8 KV heads.

    The prompt is written to 3 blocks, and read by one tile of 64 queries: 3 blocks. Two tokens
    follow in passes of their own, at contexts of 41 and 42: 1 block written and 3 read each.
    """
    words = (
        *("model=tiny-llama", "model.layers=4", "cache.block_size=16"),
        *("workload=fixed", "workload.num_requests=1", "workload.prompt_tokens=40"),
        *("workload.output_tokens=3", "tracing=sampled", "tracing.layer_stride=2"),
        *("tracing.head_stride=2", "repeats=5"),
    )
    result = planned(*words, "model.dtype=float16")
    events = 2 * 2 * ((3 + 1 + 1) + 4 * (3 + 3 + 3))
    assert events_of_a_repeat(result) == events
    assert events_on_disk(result) == (32 * events, 10 * events)
    assert needs(*words, "model.dtype=float16").kv_event_bytes == (32 + 50) * events
    every_second = planned(*words, "model.dtype=float16", "tracing.step_stride=2")
    assert events_of_a_repeat(every_second) == events // 2
    tiles_of_16 = planned(*words, "model.dtype=float32")  # 16, 32 and 40 tokens: 1 + 2 + 3 blocks
    assert events_of_a_repeat(tiles_of_16) == events + 2 * 2 * 4 * 3


def test_events_of_a_measured_run_were_as_many() -> None:
    """A real run of these settings on a CPU had 89,944, with tiles of 32 queries; these have 16."""
    words = (
        *("tracing=full", "workload=zipf", "workload.num_requests=8", "model=tiny-gqa"),
        "model.dtype=float16",
    )
    assert events_of_a_repeat(planned(*words, "seed=1234")) == pytest.approx(89_944, rel=0.02)


def test_event_buffers_are_there_if_events_are_traced() -> None:
    assert memory().event_buffer_bytes == 0
    result = memory("tracing=full", "tracing.buffer_events=1000")
    assert result.event_buffer_bytes == 2 * 32 * 1000


def test_event_buffers_count_too() -> None:
    words = ("model=yarn-llama-2-7b", "device.hardware=rtx-4090")
    planned(*words, "engine.max_num_batched_tokens=12288")
    with pytest.raises(BadInput, match=r"event buffers 9\.3"):
        planned(*words, "tracing=full", "tracing.buffer_events=156000000")


def test_a_plan_says_what_it_needs_in_its_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("device=cuda", "device.hardware=a100-40gb", "model=yarn-llama-2-7b", "tracing=full")
    _, said = printed(capsys, *words, "overflow=swap", "overflow.host_gib=4")
    result = needs(*words[1:], "overflow=swap", "overflow.host_gib=4")
    memory, disk = map(gib_text, (result.memory.total_bytes, result.kv_event_bytes))
    assert (
        f"needs {memory} GiB of GPU memory (weights 12.6, KV cache 4.0, "
        f"activations 0.4, event buffers 0.2), 4.0 GiB of pinned host memory, {disk} GiB of disk "
        "for KV events; fits a100-40gb (38.7 GiB usable): " in said
    )


def test_the_table_has_a_column_of_events(capsys: pytest.CaptureFixture[str]) -> None:
    heading, _ = printed(capsys, "device=cuda", "tracing=full,none")
    assert [cell.strip() for cell in heading] == ["id", "time", "GPU", "events", "tracing"]


def test_several_experiments_need_the_memory_of_the_largest_and_the_disk_of_all() -> None:
    small, large = needs("tracing=full"), needs("tracing=full", "cache.blocks=512", "repeats=9")
    said = in_words([small, large])
    assert f"needs {gib_text(large.memory.total_bytes)} GiB" in said
    disk = small.stored_bytes + large.stored_bytes + max(small.spool_bytes, large.spool_bytes)
    assert f"{gib_text(disk)} GiB of disk" in said


def test_as_json_the_numbers_are_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["device=cuda", "device.hardware=h200", "overflow=swap", "tracing=full"]
    assert cli.main(["plan", *words, "--json", *OF_CONFIG]) == EXIT_DONE
    (entry,) = json.loads(capsys.readouterr().out)
    result: dict[str, Any] = entry["needs"]
    parts = ("weight", "cache", "activation", "copy", "event_buffer")
    assert sum(result[f"gpu_{part}_bytes"] for part in parts) == result["gpu_memory_bytes"]
    assert result["hardware"] == "h200"
    assert result["gpu_usable_bytes"] == usable_bytes("h200")
    assert result["host_pool_bytes"] == GIB
    assert result["kv_event_bytes"] == needs(*words[1:]).kv_event_bytes > 0
    assert "hardware" not in entry["experiment"]["device"]
