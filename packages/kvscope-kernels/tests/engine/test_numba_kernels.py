"""The CPU kernels: their arithmetic, and the events they write about it."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

from kernel_batches import THREADS, Case, Shape, by_vllm

from kvscope_kernels.engine.cpu.buffer import DROPPED, USED, CpuBuffer, CpuSegments
from kvscope_kernels.kv_events import K_READ, K_WRITE, RECORD, RECORD_ALL_HEADS, V_READ, V_WRITE

pytestmark = pytest.mark.engine
SEEDS = range(24)
PLAIN = Shape([(0, 40), (70, 1), (5, 33)], block_size=16, kv_heads=2, group=2, head_size=32)


def segments(buffer: CpuBuffer, head_stride: int = 1) -> CpuSegments:
    return CpuSegments(buffer.segments, buffer.counters, 3, head_stride)


def traced(
    case: Case, capacity: int | None = None, head_stride: int = 1
) -> tuple[CpuBuffer, torch.Tensor]:
    buffer = CpuBuffer(THREADS, THREADS * (capacity or case.expected_events()))
    buffer.empty_for(case.expected_events())
    return buffer, case.run(segments(buffer, head_stride))[0]


def events_of(buffer: CpuBuffer) -> np.ndarray:
    return np.concatenate([part.reshape(-1).view(RECORD) for part in buffer.used()])


@pytest.mark.parametrize("seed", SEEDS)
def test_attention_equals_the_reference(seed: int):
    case = Case(Shape.drawn(seed), seed)
    out, cache = case.run()
    torch.testing.assert_close(out, case.reference(cache), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("seed", SEEDS[:8])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_attention_equals_vllms_own(seed: int, dtype: torch.dtype, tolerance: float):
    sizes = 32 * (seed % 3 + 1), 32 * (seed % 4 + 1)
    shape = replace(Shape.drawn(seed), block_size=sizes[0], head_size=sizes[1], by_block=False)
    case = Case(replace(shape, dtype=dtype), seed)
    result, expected = case.run()[0], by_vllm(case).float()
    torch.testing.assert_close(result, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_token_is_written_to_its_slot_and_nothing_else_changes(seed: int):
    case = Case(Shape.drawn(seed), seed)
    s, (_, cache) = case.shape, case.run()
    rows = case.cache.reshape(len(case.cache), s.kv_heads, 2, s.block_size, s.head_size).clone()
    token = 0
    for row, (context, new) in enumerate(s.rows):
        for position in range(context, context + new):
            block, slot = case.table[row, position // s.block_size], position % s.block_size
            rows[block, :, 0, slot], rows[block, :, 1, slot] = case.key[token], case.value[token]
            token += 1
    assert torch.equal(cache.reshape(rows.shape), rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_results_are_the_same_bits_with_tracing_and_without(seed: int):
    case = Case(Shape.drawn(seed), seed)
    assert torch.equal(traced(case)[1], case.run()[0])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("head_stride", [1, 3])
def test_the_events_are_those_that_the_batch_requires(seed: int, head_stride: int):
    case = Case(Shape.drawn(seed), seed)
    s = case.shape
    expected: Counter[tuple[int, ...]] = Counter()
    for row, (context, new) in enumerate(s.rows):
        for position in range(context // s.block_size, -(-(context + new) // s.block_size)):
            first = max(context, position * s.block_size)
            last = min(context + new, (position + 1) * s.block_size)
            place = (
                row,
                RECORD_ALL_HEADS,
                case.table[row, position],
                position,
                first % s.block_size,
                last - first,
            )
            expected.update({(K_WRITE, *place): 1, (V_WRITE, *place): 1})
        for end in {min(context + new, context + done + s.tile) for done in range(0, new, s.tile)}:
            for position in range(-(-end // s.block_size)):
                tokens = min(s.block_size, end - position * s.block_size)
                for head in range(0, s.kv_heads, head_stride):
                    place = (row, head, case.table[row, position], position, 0, tokens)
                    expected.update({(K_READ, *place): 1, (V_READ, *place): 1})
    buffer, _ = traced(case, head_stride=head_stride)
    fields = ("kind", "row", "kv_head", "block", "block_position", "offset_tokens", "tokens")
    result = events_of(buffer)
    assert Counter(zip(*(result[field].tolist() for field in fields), strict=True)) == expected
    assert (result["layer"] == 3).all()
    assert not result["flags"].any()
    assert not buffer.counters[:, DROPPED].any()


def test_a_worker_does_one_thing_after_the_other():
    buffer, _ = traced(Case(PLAIN))
    for part in buffer.used():
        events = part.reshape(-1).view(RECORD)
        ends = events["start_ticks"] + events["duration_ticks"]
        assert (events["start_ticks"][1:] >= ends[:-1]).all()


@pytest.mark.parametrize("capacity", [1, 17])
def test_a_full_segment_counts_drops_and_keeps_its_events(capacity: int):
    case = Case(PLAIN)
    buffer, out = traced(case, capacity)
    used, dropped = buffer.counters[:, USED], buffer.counters[:, DROPPED]
    assert (used <= capacity).all()
    assert used.sum() + dropped.sum() == case.expected_events()
    assert torch.equal(out, case.run()[0])


def test_the_contents_of_a_free_slot_do_not_matter():
    case = Case(PLAIN)
    out, _ = case.run()
    s = case.shape
    rows = case.cache.view(len(case.cache), s.kv_heads, 2, s.block_size, s.head_size)
    for row, (context, new) in enumerate(s.rows):
        last = (context + new - 1) // s.block_size
        rows[case.table[row, last], :, :, (context + new - 1) % s.block_size + 1 :] = torch.nan
    assert torch.equal(case.run()[0], out)
