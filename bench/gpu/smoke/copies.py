"""kvscope's copies between cache and host: bytes come back as they left, and how fast.

Two kinds of memory, page-locked and pageable, and two kinds of copies, each block by itself and
coalesced, with the sizes of Llama-2-7B: 32 layers, blocks of 16 tokens.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from kvscope.engine.vllm.connectors.copies import (
    Coalesced,
    PerBlock,
    Planes,
    cache_planes,
    host_planes,
)
from smoke.place import DEVICE, REHEARSED, store

LAYERS, BLOCKS, WIDTH, MOVED, TURNS = (2, 16, 512, 6, 1) if REHEARSED else (32, 96, 2**18, 64, 7)
GIB = 2**30


def main(seconds: float) -> list[str]:
    """Measure all four; a fault is where bytes differ."""
    torch.manual_seed(0)
    on_gpu = {"dtype": torch.uint8, "device": DEVICE}
    caches = [torch.randint(0, 255, (BLOCKS, WIDTH), **on_gpu) for _ in range(LAYERS)]
    planes = cache_planes(caches)
    order = torch.randperm(BLOCKS)[:MOVED].tolist()
    expected = [plane.cpu()[order] for plane in planes]
    rows: list[dict[str, Any]] = []
    for pinned in (True, False):
        start = time.perf_counter()
        host, memory = host_planes(planes, BLOCKS, pinned)
        allocating_s = time.perf_counter() - start
        for way in (PerBlock(), Coalesced()):
            row = compared(way, planes, order, host, expected)
            row |= {"memory": memory, "allocating_s": allocating_s, "asked_pinned": pinned}
            rows.append(row)
            store("copies", rows)
            print(row, flush=True)
    return [fault for row in rows for fault in faults(row)]


def compared(
    way: PerBlock | Coalesced, planes: Planes, order: list[int], host: Planes, expected: Planes
) -> dict[str, Any]:
    """Comparison of a kind of copies, out and in."""
    to = list(range(MOVED))
    out = timed(lambda: way.out(planes, order, host, to))
    kept = all(torch.equal(h[:MOVED], e) for h, e in zip(host, expected, strict=True))
    for plane in planes:
        plane.zero_()
    back = timed(lambda: way.into(planes, order, host, to))
    same = all(torch.equal(p.cpu()[order], e) for p, e in zip(planes, expected, strict=True))
    return {
        "copies": type(way).__name__,
        "blocks": MOVED,
        "layers": LAYERS,
        "bytes": MOVED * LAYERS * WIDTH,
        "out": out,
        "in": back,
        "bytes_kept": kept,
        "bytes_back": same,
    }


def timed(call: Callable[[], object]) -> dict[str, float]:
    """Medians of a call: until it is launched, and until the GPU is done."""
    call()  # compiles, and touches memory
    torch.cuda.synchronize()
    launched, done = [], []
    for _ in range(TURNS):
        start = time.perf_counter()
        call()
        launched.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        done.append(time.perf_counter() - start)
    return {
        "seconds": median(done),
        "gib_per_s": MOVED * LAYERS * WIDTH / median(done) / GIB,
        "launch_us_per_block_and_layer": median(launched) * 1e6 / (MOVED * LAYERS),
    }


def faults(row: dict[str, Any]) -> list[str]:
    """Complaints about a kind of copies."""
    name = f"{row['memory']}, {row['copies']}"
    result = [] if row["bytes_kept"] else [f"{name}: bytes on the host differ"]
    result += [] if row["bytes_back"] else [f"{name}: bytes that came back differ"]
    if row["asked_pinned"] != (row["memory"] == "pinned"):
        result.append(f"{name}: asked for {'pinned' if row['asked_pinned'] else 'pageable'} memory")
    return result
