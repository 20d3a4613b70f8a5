"""Warm-up compares the attention kernels with a plain recomputation, which notices faults."""

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

from kernel_batches import Case
from numba_interpreted import Fault, kernels

from kvscope.engine.attention.reference import ReferenceChecks
from kvscope_kernels.engine.cpu import kernels as compiled
from kvscope_kernels.engine.cpu.attention import NumbaAttention, NumbaMetadata
from tests.engine.test_checks import PASSES, SMALL

pytestmark = pytest.mark.engine


def by_kernels(checks: ReferenceChecks, case: Case, *faults: Fault) -> None:
    """A layer's turn with the kernels of `instrumented`, or with parts of their source replaced."""
    s, cached = case.shape, case.fresh_cache()
    mutant = kernels(*faults) if faults else compiled
    attention = NumbaAttention(s.kv_heads * s.group, s.head_size, s.head_size**-0.5, s.kv_heads)
    case.write(cached, None, mutant)
    output = case.attend(cached, None, mutant).to(s.dtype)
    batch = NumbaMetadata(case.cut, len(output), None, case.starts, case.lengths, s.block_size)
    checks.compare(0, attention, (case.query, case.key, case.value), cached, batch.rows, output)


@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_as_it_should_be_is_the_reference_s(by_block: bool, dtype: Any):
    checks = ReferenceChecks()
    for seed in range(PASSES):
        shape = replace(SMALL, dtype=dtype, by_block=by_block)
        by_kernels(checks, Case(shape, seed))
    assert checks.facts["compared"] == 3
    assert checks.facts["differing"] == 0, checks.first
    assert 0 < checks.facts["largest_error"] < checks.facts["tolerance"] / 4


READ_K = "            multiply_keys(q, kv, base, tokens, scores[b], copy)"
READ_V = "            add_values(scores[b], kv, base, tokens, o, copy, product)"
VALUES = "h * strides[1] + block_size * size"
FAULTS: dict[str, Fault] = {
    "mask one too long": ("seen = first + r // group + 1", "seen = first + r // group + 2"),
    "mask one too short": (
        "seen = first + r // group + 1",
        "seen = max(1, first + r // group)",
    ),
    "no mask": ("seen = first + r // group + 1", "seen = first + rows // group"),
    "V of another head": (VALUES, "(kv_heads - 1 - h) * strides[1] + block_size * size"),
    "queries of another head": ("h * group + r % group, d] * scale", "r % group, d] * scale"),
    "K of a block not read": (
        READ_K,
        f"            scores[b] = 0\n            if b != 1:\n    {READ_K}",
    ),
    "V of a block not read": (READ_V, f"            if b != 2:\n    {READ_V}"),
    "a block too few": (
        "blocks = queries * group, (end + block_size - 1) // block_size",
        "blocks = queries * group, max(1, (end - 1) // block_size)",
    ),
    "no scale": ("h * group + r % group, d] * scale", "h * group + r % group, d]"),
    "V written where K is due": (
        "base += (is_value * block_size + offset) * size",
        "base += ((1 - is_value) * block_size + offset) * size",
    ),
    "a piece not written": ("into[d] = new[d]", "into[d] = new[d] * (position != 2)"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_kernel_is_noticed(name: str):
    checks = ReferenceChecks()
    for seed in range(PASSES):
        by_kernels(checks, Case(SMALL, seed), FAULTS[name])
    assert checks.differing > 0
    assert checks.largest > checks.tolerance
    assert checks.first.startswith("warm-up pass ")


def test_an_output_that_is_no_number_differs():
    checks = ReferenceChecks()
    by_kernels(checks, Case(SMALL), ("share = np.float32(1) / total", "share = np.float32(np.nan)"))
    assert (checks.compared, checks.differing, checks.largest) == (1, 1, 1e9)
