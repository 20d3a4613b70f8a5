"""Copies of a real GPU by CUDA's own calls, for vLLM's operators that copy blocks.

Blocks are copied one after the other by `cudaMemcpyAsync`, and a batch by the driver's one call for
all (`cuMemcpyBatchAsync`, from CUDA 12.8 on), as vLLM's compiled operators do. Loops are in C where
there is a compiler, and in Python, which adds some microseconds to each copy, where there is none.
"""

import ctypes
import os
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kvscope.api.machine import processes

TO_DEVICE, TO_HOST, BY_ADDRESS = 1, 2, 4  # cudaMemcpyKind
IN_STREAM_ORDER, IN_ANY_ORDER = 1, 3  # CUmemcpySrcAccessOrder
LEGACY_STREAM = 0  # on which the driver copies no batch
LOOPS = """
typedef int (*copy_t)(void *, const void *, unsigned long, int, void *);

int copy_blocks(copy_t copy, char *to, const char *of, unsigned long width, int kind, void *stream,
                const long *map, long count) {
    for (long i = 0; i < count; i++) {
        int error = copy(to + map[2 * i + 1] * width, of + map[2 * i] * width, width, kind, stream);
        if (error) return error;
    }
    return 0;
}

int copy_each(copy_t copy, void **to, void **of, const long *sizes, int kind, void *stream,
              long count) {
    for (long i = 0; i < count; i++) {
        int error = copy(to[i], of[i], sizes[i], kind, stream);
        if (error) return error;
    }
    return 0;
}
"""


class Location(ctypes.Structure):
    """`CUmemLocation`."""

    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Attributes(ctypes.Structure):
    """`CUmemcpyAttributes`."""

    _fields_ = [
        ("source_order", ctypes.c_int),
        ("source_hint", Location),
        ("target_hint", Location),
        ("flags", ctypes.c_uint),
    ]


class CudaCopies:
    """`operators.Copies` by CUDA, on the GPU's current stream."""

    def blocks(self, to: torch.Tensor, of: torch.Tensor, width: int, mapping: torch.Tensor) -> None:
        """Launch a copy for each row of the mapping."""
        kind = BY_ADDRESS if to.is_cuda and of.is_cuda else TO_HOST if of.is_cuda else TO_DEVICE
        rows, copy = mapping.to(torch.int64).contiguous(), copy_function()
        stream = current_stream(of.device if of.is_cuda else to.device)
        if (loops := compiled_loops()) is not None:
            arguments = to.data_ptr(), of.data_ptr(), width, kind, stream, rows.data_ptr()
            raise_for(loops.copy_blocks(copy, *arguments, len(rows)))
            return
        target, source = to.data_ptr(), of.data_ptr()
        for block, place in rows.tolist():
            raise_for(copy(target + place * width, source + block * width, width, kind, stream))

    def batch(
        self, to: torch.Tensor, of: torch.Tensor, sizes: torch.Tensor, any_order: bool
    ) -> None:
        """Launch all copies by one call of the driver, or one each where it has no such call."""
        stream, copies = current_stream(), batch_function()
        if copies is None or stream == LEGACY_STREAM:
            copy_each(to, of, sizes, stream)
        else:
            copies(to.data_ptr(), of.data_ptr(), sizes.data_ptr(), len(sizes), any_order, stream)


def copy_each(to: torch.Tensor, of: torch.Tensor, sizes: torch.Tensor, stream: int) -> None:
    """A call for each copy; addresses and sizes are 64-bit integers of the host."""
    copy = copy_function()
    if (loops := compiled_loops()) is not None:
        arguments = to.data_ptr(), of.data_ptr(), sizes.data_ptr(), BY_ADDRESS, stream
        raise_for(loops.copy_each(copy, *arguments, len(sizes)))
        return
    for place, begin, size in zip(to.tolist(), of.tolist(), sizes.tolist(), strict=True):
        raise_for(copy(place, begin, size, BY_ADDRESS, stream))


def current_stream(device: Any = None) -> int:
    """The handle of the stream on which this thread launches."""
    return int(torch.cuda.current_stream(device).cuda_stream)


@cache
def copy_function() -> Any:
    """`cudaMemcpyAsync` of the runtime that PyTorch has loaded."""
    library = re.search(r"\S*/libcudart\S*\.so\S*", Path("/proc/self/maps").read_text())
    function = ctypes.CDLL(library[0] if library else "libcudart.so").cudaMemcpyAsync
    function.argtypes = (
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p),
    )
    return function


@cache
def batch_function() -> Any:
    """`copies(to, of, sizes, count, any order, stream)` by the driver; None before CUDA 12.8.

    CUDA 13's function has no place for the index of a failed copy.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    new = getattr(driver, "cuMemcpyBatchAsync_v2", None)
    function = new or getattr(driver, "cuMemcpyBatchAsync", None)
    if function is None:
        return None
    word, pointer = ctypes.c_size_t, ctypes.c_void_p
    ends = (pointer,) if new else (pointer, pointer)
    function.argtypes = (pointer, pointer, pointer, word, pointer, pointer, word, *ends)
    orders = {False: Attributes(IN_STREAM_ORDER), True: Attributes(IN_ANY_ORDER)}
    first, failed = word(0), word(0)  # the attributes are of all copies from the first on

    def copies(to: int, of: int, sizes: int, count: int, any_order: bool, stream: int) -> None:
        attributes = ctypes.byref(orders[any_order])
        end = (stream,) if new else (ctypes.byref(failed), stream)
        raise_for(function(to, of, sizes, count, attributes, ctypes.byref(first), 1, *end))

    return copies


@cache
def compiled_loops() -> Any:
    """The loops in C; None where no compiler makes them."""
    with tempfile.TemporaryDirectory(prefix="kvscope-loops-") as directory:
        source, library = Path(directory) / "loops.c", Path(directory) / "loops.so"
        source.write_text(LOOPS)
        for compiler in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
            command = [compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library)]
            try:
                processes.run(command, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                continue
            return _typed(ctypes.CDLL(str(library)))
    return None


def _typed(loops: Any) -> Any:
    """The loops, with the types of their arguments."""
    pointer, word, number = ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int
    of_blocks = (pointer, pointer, pointer, word, number, pointer, pointer, ctypes.c_long)
    of_each = (pointer, pointer, pointer, pointer, number, pointer, ctypes.c_long)
    loops.copy_blocks.argtypes, loops.copy_each.argtypes = of_blocks, of_each
    return loops


def raise_for(error: int) -> None:
    """RuntimeError for an error of CUDA's."""
    if error:
        raise RuntimeError(f"CUDA refuses a copy: error {error}")
