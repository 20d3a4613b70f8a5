"""The cost model: what must hold whatever its numbers are, and the formulas of docs/MODEL.md."""

from collections.abc import Sequence
from functools import cache
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.plan.composition import Composer
from kvscope.plan.models import Model
from kvscope_model.hardware import files
from kvscope_model.hardware import hardware as data
from kvscope_model.hardware.cost import TILES, PassCost, copy_s, paid_elements
from kvscope_model.hardware.overflow_cost import OverflowCost
from kvscope_model.runs.loads import loads_of

A100 = data.read("a100-40gb")


@cache
def model_of(name: str) -> Model:
    return Model.model_validate(Composer(Path("config")).compose((("model", name),))["model"])


MODEL = model_of("yarn-llama-2-7b")
COST = PassCost(A100, MODEL)
tokens = st.integers(1, 8192)


@given(tokens, tokens)
def test_a_prompt_takes_at_least_the_time_of_its_arithmetic(n: int, context: int):
    flops = 2.0 * n * (MODEL.parameters - 2 * MODEL.vocab_size * MODEL.hidden_size)
    assert COST.pass_s([(n, context)], 0, 0, 0) >= flops / A100.peak_flops_per_s


@given(st.integers(1, 256), st.integers(1, 4096))
def test_a_decode_pass_reads_all_weights_and_the_whole_context(requests: int, context: int):
    held = 2.0 * (MODEL.parameters - MODEL.vocab_size * MODEL.hidden_size)
    held += requests * context * MODEL.kv_bytes_per_token
    seconds = COST.pass_s([], requests, requests * context, context)
    assert seconds >= held / A100.memory_bytes_per_s


@given(st.integers(2, 64), st.integers(1, 2048))
def test_a_longer_context_never_takes_less(requests: int, context: int):
    shorter = COST.pass_s([], requests, requests * context, context)
    assert COST.pass_s([], requests, requests * (context + 16), context + 16) >= shorter


def test_one_long_context_takes_longer_than_its_bytes_with_a_thread_block_a_head():
    split = PassCost(A100, MODEL, split_decode=True)
    assert COST.decode_attention_s(16_000, 16_000, 1, max) > 2 * split.decode_attention_s(
        16_000, 16_000, 1, max
    )
    assert COST.decode_attention_s(256_000, 1000, 1, max) == split.decode_attention_s(
        256_000, 1000, 1, max
    )


rows = st.lists(st.tuples(st.integers(1, 600), st.integers(0, 4096)), min_size=1, max_size=20)


@given(st.lists(rows, min_size=1, max_size=8), st.booleans(), st.booleans())
def test_each_of_many_passes_takes_as_long_as_alone(passes, prefix_kernel, split_decode):
    """To the last bit: intervals begin with what a run recorded."""
    for hardware in (A100, data.read("cpu")):
        cost = PassCost(hardware, MODEL, prefix_kernel, split_decode)
        steps = pd.DataFrame({"step": range(len(passes))})
        batch = pd.DataFrame(
            [(step, *row) for step, rows in enumerate(passes) for row in rows],
            columns=["step", "scheduled_tokens", "context_tokens"],
        )
        together = cost.passes_s(loads_of(steps, batch))
        assert together.tolist() == [cost.rows_s(rows) for rows in passes]


@given(tokens, st.integers(1, 20_000), st.sampled_from([108, 132]))
def test_paid_elements_are_whole_waves_and_at_least_the_output(n, outputs, multiprocessors):
    assert paid_elements(n, outputs, multiprocessors) >= n * outputs


@given(
    st.integers(1, 5000), st.sampled_from(["pinned", "pageable"]), st.sampled_from(["in", "out"])
)
def test_calls_never_take_longer_than_the_copies(copies: int, memory: str, direction: str):
    device_s, issue_s = copy_s(A100, copies, 131_072, memory, direction)
    assert issue_s <= device_s * (1 + 1e-12)
    assert (memory == "pageable") <= (issue_s == device_s)
    rate = getattr(A100, f"{memory}_{direction}_bytes_per_s")
    assert device_s >= copies * 131_072 / rate


@pytest.mark.parametrize("name", [name for name in files.names() if name != files.HOST])
def test_the_published_decode_of_few_requests_is_bound_by_the_weights(name: str):
    hardware = data.read(name)
    seconds = PassCost(hardware, MODEL).pass_s([], 1, 40, 40)
    assert seconds > 2.0 * MODEL.parameters / hardware.memory_bytes_per_s * 0.98


# ------------------------------------------------------------------ the formulas, written plainly

Rows = Sequence[tuple[int, int]]  # tokens of each request, and those in the cache before


def gemm_s(hardware: Any, tokens: int, outputs: int, inputs: int, width: int) -> float:
    processors = hardware.multiprocessors
    paid = [float(tokens * outputs)]
    if processors > 1:
        paid = [
            ceil(ceil(tokens / high) * ceil(outputs / wide) / processors)
            * (processors * high * wide * slower)
            for high, wide, slower in TILES
        ]
    arithmetic_s = 2 * inputs * min(paid) / hardware.gemm_flops_per_s
    weights_s = outputs * inputs * width / hardware.weight_bytes_per_s
    return (arithmetic_s**4 + weights_s**4) ** 0.25


def prefill_s(hardware: Any, model: Model, rows: Rows, prefix_kernel: bool) -> float:
    if not prefix_kernel:
        pairs = sum(n * (n + 1) / 2 + n * context for n, context in rows)
        return 4 * model.attention_heads * model.head_size * pairs / hardware.attention_flops_per_s
    queries = [ceil(n / 128) for n, _ in rows]
    waves = ceil(sum(queries) * model.attention_heads / hardware.multiprocessors)
    token_s = sum(
        count * (context * hardware.prefix_token_s + n / 2 * hardware.chunk_token_s)
        for count, (n, context) in zip(queries, rows, strict=True)
    )
    return waves * token_s / sum(queries)


def decode_s(hardware: Any, model: Model, lengths: Sequence[int], split: bool, width: int) -> float:
    of_a_head = 2 * model.head_size * width
    seconds = [
        sum(lengths) * model.kv_heads * of_a_head
        / (hardware.memory_bytes_per_s * hardware.read_share),
        sum(lengths) * model.attention_heads * of_a_head / hardware.l2_bytes_per_s,
    ]  # fmt: skip
    if not split:
        share = hardware.memory_bytes_per_s / hardware.multiprocessors
        seconds.append(max(lengths) * of_a_head / share)
    return max(seconds)


def pass_s(hardware: Any, model: Model, rows: Rows, prefix_kernel: bool, split: bool) -> float:
    width = {"float32": 4}.get(model.dtype, 2)
    tokens, hidden = sum(n for n, _ in rows), model.hidden_size
    queries = model.attention_heads * model.head_size
    up = model.intermediate_size * (2 if model.family == "llama" else 1)
    shapes = [(queries + 2 * model.kv_heads * model.head_size, hidden), (hidden, queries)]
    shapes += [(up, hidden), (hidden, model.intermediate_size)]
    layer_s = sum(gemm_s(hardware, tokens, *shape, width) for shape in shapes)
    prompts = [row for row in rows if row[0] > 1 or not row[1]]
    lengths = [context + 1 for n, context in rows if n == 1 and context]
    if prompts:
        layer_s += prefill_s(hardware, model, prompts, prefix_kernel)
    if lengths:
        layer_s += decode_s(hardware, model, lengths, split, width)
    logits_s = gemm_s(hardware, len(rows), model.vocab_size, hidden, width)
    device_s, launches_s = model.layers * layer_s + logits_s, model.layers * hardware.layer_launch_s
    together = sum if hardware.multiprocessors == 1 else max
    host_s = hardware.request_s + hardware.vocabulary_entry_s * model.vocab_size
    return float(together([device_s, launches_s]) + len(rows) * host_s)


@pytest.mark.parametrize("name", ["yarn-llama-2-7b", "llama-3.1-8b", "opt-6.7b", "tiny-llama"])
@given(rows, st.booleans(), st.booleans(), st.sampled_from(["a100-40gb", "h100", "cpu"]))
def test_a_pass_takes_the_seconds_of_the_formula(name, rows, prefix_kernel, split, hardware):
    numbers, model = data.read(hardware), model_of(name)
    result = PassCost(numbers, model, prefix_kernel, split).rows_s(rows)
    assert result == pytest.approx(pass_s(numbers, model, rows, prefix_kernel, split), rel=1e-12)


# Each number another: one in the place of another shows.
COPIES = SimpleNamespace(
    **{"copy_issue_s": 3e-6, "copy_queue": 50, "pinned_copy_s": 1e-6, "pageable_copy_s": 5e-6},
    **{"pinned_out_bytes_per_s": 2e10, "pinned_in_bytes_per_s": 3e10},
    **{"pageable_out_bytes_per_s": 5e9, "pageable_in_bytes_per_s": 7e9},
)


@given(
    st.integers(1, 5000),
    st.integers(1, 10**6),
    st.sampled_from(["pinned", "pageable"]),
    st.sampled_from(["in", "out"]),
)
def test_copies_take_the_seconds_of_the_formula(copies, piece_bytes, memory, way):
    fixed_s = {"pinned": 1e-6, "pageable": 5e-6}[memory]
    rates = {"pinned out": 2e10, "pinned in": 3e10, "pageable out": 5e9, "pageable in": 7e9}
    each_s = max(3e-6, fixed_s + piece_bytes / rates[f"{memory} {way}"])
    issued_s = max(copies * 3e-6, (copies - min(copies, 50)) * each_s)
    due = (copies * each_s, copies * each_s if memory == "pageable" else issued_s)
    numbers: Any = COPIES
    assert copy_s(numbers, copies, piece_bytes, memory, way) == pytest.approx(due)


@given(
    blocks=st.integers(1, 500),
    runs=st.integers(1, 9),
    coalesced=st.booleans(),
    memory=st.sampled_from(["pinned", "pageable"]),
    name=st.sampled_from(["a100-40gb", "cpu"]),
)
def test_what_is_moved_takes_the_seconds_of_the_formula(blocks, runs, coalesced, memory, name):
    """Blocks both ways, fetched and saved activations: in copies of these sizes, by `copy_s`."""
    numbers = data.read(name).model_copy(update=vars(COPIES))
    pieces, runs = 7, min(blocks, runs)
    cost = OverflowCost(PassCost(numbers, MODEL), 16, pieces, memory, coalesced)
    kv, activations = 16 * 32 * 2 * 4096 * 2, 16 * 32 * 4096 * 2  # bytes of a block

    def due(count: int, pieces: int, block_bytes: int, way: str) -> float:
        copies = (runs if coalesced else count) * pieces
        of_copies_s, _ = copy_s(numbers, copies, count * block_bytes / copies, memory, way)
        bandwidth = numbers.memory_bytes_per_s * numbers.read_share
        scatters = coalesced and name != "cpu"
        return of_copies_s + scatters * 2 * count * block_bytes / bandwidth

    for way in ("in", "out"):
        assert cost.swap_s(blocks, runs, way)[0] == pytest.approx(due(blocks, pieces, kv, way))
    assert cost.fetch_s(blocks, runs)[0] == pytest.approx(due(blocks, 1, activations, "in"))
    saved_bytes = blocks * activations // 16  # of a token for each
    saved_s, _ = copy_s(numbers, runs, saved_bytes / runs, memory, "out")
    assert cost.save_s(blocks, runs)[0] == pytest.approx(saved_s)
    touched_s = 2 * saved_bytes / (numbers.memory_bytes_per_s * numbers.read_share)
    assert cost.gather_s(blocks) == pytest.approx(touched_s)


@given(st.integers(1, 5000), st.sampled_from(["a100-40gb", "cpu"]))
def test_rebuilding_takes_the_seconds_of_the_formula(tokens, name):
    numbers = data.read(name)
    result = OverflowCost(PassCost(numbers, MODEL), 16, 1, "pinned", False).rebuild_s(tokens)
    due_s = 0.0
    for first in range(0, tokens, 1024):
        count = min(1024, tokens - first)
        moved_bytes = 2 * 2 * count * (4096 + 3 * 4096)
        busy_s = gemm_s(numbers, count, 3 * 4096, 4096, 2)
        busy_s += moved_bytes / (numbers.memory_bytes_per_s * numbers.read_share)
        together = sum if name == "cpu" else max
        due_s += 32 * together([busy_s, 0.4 * numbers.layer_launch_s])
    assert result == pytest.approx(due_s)


@given(tokens=st.integers(1, 4096))
def test_writing_k_and_v_of_a_layer_is_bound_by_memory(tokens: int) -> None:
    """K and V of each token, in 16 bits; the layer's other work takes far longer."""
    layer = COST.layer_cost([(tokens, 0)])
    written = tokens * 2 * MODEL.kv_heads * MODEL.head_size * 2
    assert layer.write_s == pytest.approx(written / A100.memory_bytes_per_s)
    assert layer.write_start_s + layer.write_s + layer.attention_s < layer.seconds
