"""Machine code of the GPU's kernels, compiled for A100 and H100 by the tools in Triton's wheel.

A block's loads must lie between its stamps in the machine code, whatever a compiler may reorder,
and a kernel that records nothing must have no trace of recording.
"""

import re
from dataclasses import replace
from itertools import product
from types import ModuleType

import pytest
from cuda_cases import Variant

KERNELS = ("decode", "split", "prefill", "write one", "write many")
RECORDING = [Variant(kernel, True, gpu) for kernel, gpu in product(KERNELS, (80, 90))]
RECORDING += [
    Variant("split", dtype="bf16", group=8, kv_heads=8),
    Variant("prefill", capability=80, dtype="bf16", group=4, kv_heads=8, block_size=32),
    Variant("decode", group=7, kv_heads=4, head_size=80, block_size=12),
    Variant("prefill", capability=80, block_size=128),
    Variant("split", capability=80, block_size=128),
    Variant("prefill", capability=80, dtype="fp32", head_size=64, block_size=32),
]
PLAIN = [replace(variant, instrument=False) for variant in RECORDING]
LOAD = re.compile(r"(@\S+ )?LDG(STS)?\.E")
WIDE_LOAD = re.compile(r"(@\S+ )?LDG(STS)?\.E\.(BYPASS\.)?(64|128)")


@pytest.mark.parametrize("variant", RECORDING, ids=str)
def test_a_blocks_loads_lie_between_its_stamps(compiler: ModuleType, variant: Variant):
    code = compiler.compiled(variant)
    inside, outside = compiler.around_stamps(code)
    for lines in inside:
        loads = [n for n, line in enumerate(lines) if LOAD.match(line)]
        assert loads
        # The end stamp comes after a barrier, before which all that was loaded is used: an
        # instruction waits for its operands, and those after it wait for it.
        barrier = max(n for n, line in enumerate(lines) if "BAR.SYNC" in line)
        assert loads[-1] < barrier
        stored = " ".join(line for line in lines[:barrier] if re.search("STS|STG", line))
        loaded = {re.findall(r"LDG\S+ (R\d+)", lines[n])[0] for n in loads}
        assert not {register for register in loaded if not re.search(rf"\b{register}\b", stored)}
    for lines in outside:  # no data is loaded early
        assert not [line for line in lines if WIDE_LOAD.match(line)]


@pytest.mark.parametrize("variant", RECORDING, ids=str)
def test_ptx_has_the_stamps_in_order(compiler: ModuleType, variant: Variant):
    ptx = compiler.compiled(variant).ptx
    stamps = re.findall(r"%(clock64|globaltimer|smid)", ptx)
    event = ["clock64"] * 2
    assert stamps == ["smid", "clock64", "globaltimer", *event, *event, "clock64", "globaltimer"]
    starts = [found.start() for found in re.finditer("%clock64", ptx)][1:-1]
    for start, end in (starts[:2], starts[2:]):
        assert "ld.global" in ptx[start:end]
        assert "bar.sync" in ptx[start:end]


@pytest.mark.parametrize("variant", PLAIN, ids=str)
def test_without_recording_there_is_no_trace_of_it(compiler: ModuleType, variant: Variant):
    code = compiler.compiled(variant)
    assert not re.search(r"%clock|%globaltimer|%smid", code.ptx)
    special = ("SR_CLOCK", "GLOBALTIMER", "SMID")
    assert not [line for line in code.instructions if any(name in line for name in special)]


@pytest.mark.parametrize("variant", [Variant(name, False) for name in KERNELS[:3]], ids=str)
def test_the_next_block_is_loaded_while_one_is_computed_with(
    compiler: ModuleType, variant: Variant
):
    # The loop waits until no more than so many groups of loads are on their way.
    waits = re.findall(r"DEPBAR\.LE SB0, 0x(\d)", " ".join(compiler.compiled(variant).instructions))
    assert max(map(int, waits)) >= 2


@pytest.mark.parametrize("variant", RECORDING + PLAIN, ids=str)
def test_everything_fits_in_registers(compiler: ModuleType, variant: Variant, record_property):
    code = compiler.compiled(variant)
    record_property("registers", code.registers)
    assert code.stack == 0
    assert code.registers < 256
    assert code.shared <= 163 * 1024  # what a CTA may have on an A100


@pytest.mark.parametrize("capability", [80, 90])
def test_parts_are_joined_in_registers(compiler: ModuleType, capability: int):
    code = compiler.reduce_compiled(capability)
    assert code.stack == 0
