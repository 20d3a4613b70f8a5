"""The kernels compiled for a GPU that is not here: their PTX, machine code and use of registers."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import triton
from cuda_cases import Variant
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvscope_kernels.engine.cuda import kernels, launch
from kvscope_kernels.engine.cuda.batch import MAX_SPLITS
from kvscope_kernels.planning import tile_tokens

POINTERS = {
    "*fp32": ("partial", "partial_max", "partial_sum"),
    "*i64": ("pieces", "slots", "tiles", "kv_heads", "starts", "events", "headers", "counter"),
    "*i32": ("table",),
}
DATA = ("query", "key", "value", "cache", "output")
TYPES = {name: kind for kind, names in POINTERS.items() for name in names}
TYPES |= {"scale_log2": "fp32", "splits": "i32"}
BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}


@dataclass(frozen=True)
class Compiled:
    """`registers` of a thread; `stack` bytes of it in memory, 0 if nothing was spilled."""

    ptx: str
    instructions: tuple[str, ...]
    registers: int
    stack: int
    shared: int


@cache
def compiled(variant: Variant) -> Compiled:
    """Compile a variant, launched as `launch` launches it."""
    writes = variant.kernel.startswith("write")
    kernel = kernels.kvscope_write if writes else kernels.kvscope_attention
    constants, warps, stages = (_write if writes else _attend)(variant)
    constants |= {
        "KV_HEADS": variant.kv_heads,
        "HEAD_SIZE": variant.head_size,
        "BLOCK_SIZE": variant.block_size,
        "INSTRUMENT": variant.instrument,
        "CLOCK": launch.HARDWARE,
    }
    signature, hints = {}, {}
    for n, name in enumerate(kernel.arg_names):
        kind = f"*{variant.dtype}" if name in DATA else TYPES.get(name, "i64")
        signature[name] = "constexpr" if name in constants else kind
        # The alignment at run time: tensors begin at multiples of 16 bytes, and so do their rows.
        if kind.startswith("*") or name.split("_")[0] in (*DATA, "table"):
            hints[(n,)] = [["tt.divisibility", 16]]
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, values, hints)
    return _compiled(source, variant.capability, num_warps=warps, num_stages=stages)


def _write(variant: Variant) -> tuple[dict[str, Any], int, int]:
    longest = 1 if variant.kernel == "write one" else variant.block_size
    tokens, chunk = launch.write_chunk(
        longest, variant.block_size, variant.kv_heads * variant.head_size
    )
    constants = {"TOKENS": tokens, "CHUNK": chunk}
    return constants, launch.FEW_WARPS, 1


def _attend(variant: Variant) -> tuple[dict[str, Any], int, int]:
    size = BYTES[variant.dtype]
    tile = tile_tokens(variant.group, size) if variant.kernel == "prefill" else 1
    rows = launch.padded_size(tile * variant.group)
    constants = {
        "GROUP": variant.group,
        "TILE": tile,
        "ROWS": rows,
        "WIDTH": launch.padded_size(variant.head_size),
        "SLOTS": launch.padded_size(variant.block_size),
        "SPLIT": variant.kernel == "split",
    }
    warps = launch.choose_warps(rows, variant.block_size, variant.head_size, size)
    sizes = (variant.block_size, variant.head_size, size)
    return constants, warps, launch.choose_stages(*sizes, variant.instrument)


@cache
def reduce_compiled(capability: int) -> Compiled:
    """The kernel that joins the parts of a sequence; it records nothing."""
    kernel = kernels.kvscope_reduce
    constants = {"HEAD_SIZE": 128, "WIDTH": 128, "PARTS": MAX_SPLITS}
    types = TYPES | {"output": "*fp16"} | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i64") for name in kernel.arg_names}
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    return _compiled(ASTSource(kernel, signature, values), capability, num_warps=4)


def _compiled(source: ASTSource, capability: int, **options: int) -> Compiled:
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, stack, instructions = _machine_code(made.asm["cubin"])
    return Compiled(made.asm["ptx"], instructions, registers, stack, made.metadata.shared)


def _machine_code(cubin: bytes) -> tuple[int, int, tuple[str, ...]]:
    """Registers, bytes of stack, and the instructions, by the tools in Triton's wheel."""
    tools = triton.knobs.nvidia
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kernel.cubin"
        path.write_bytes(cubin)

        def said(*command: str) -> str:
            done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=True)
            return done.stdout

        usage = said(tools.cuobjdump.path, "--dump-resource-usage")
        code = said(tools.nvdisasm.path, "-c", "-ndf")
    result = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert result is not None, usage
    lines = re.findall(r"/\*[0-9a-f]{4,}\*/\s+([^;]+);", code)
    return int(result[1]), int(result[2]), tuple(" ".join(line.split()) for line in lines)


def around_stamps(code: Compiled) -> tuple[list[list[str]], list[list[str]]]:
    """The instructions between the start and the end stamp of K and of V, and those between the
    end stamp of K and the start of V, and of V and whatever follows.

    A CTA reads its SM's clock when it begins, around what it does to a block, and when it ends.
    """
    clocks = [n for n, line in enumerate(code.instructions) if "SR_CLOCKLO" in line]
    _, k_start, k_end, v_start, v_end, end = clocks
    spans = ((k_start, k_end), (v_start, v_end)), ((k_end, v_start), (v_end, end))
    inside, outside = ([list(code.instructions[a:b]) for a, b in pairs] for pairs in spans)
    return inside, outside
