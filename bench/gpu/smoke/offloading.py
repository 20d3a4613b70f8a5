"""Host time to submit a copy of vLLM's offloading: microseconds until the call returns.

vLLM's own worker stores and loads blocks of a cache of Llama-2-7B's sizes, in jobs of 1 to 64
blocks; and its operator is called alone, with the same copies. Where vLLM's kernels are not
compiled, the operator is kvscope-rehearsal's, which calls the driver from Python.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from vllm import _custom_ops as ops
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker

from smoke.place import DEVICE, REHEARSED, store

LAYERS, BLOCKS, WIDTH, TURNS = (2, 16, 2**15, 2) if REHEARSED else (32, 96, 2**18, 30)
JOBS = (1, 4) if REHEARSED else (1, 8, 64)


def main(seconds: float) -> list[str]:
    """Measure jobs of each size; a fault is where bytes differ."""
    on_gpu = {"dtype": torch.int8, "device": DEVICE}
    caches = [torch.randint(-128, 127, (BLOCKS, WIDTH), **on_gpu) for _ in range(LAYERS)]
    tensors = [CanonicalKVCacheTensor(cache, WIDTH) for cache in caches]
    refs = [CanonicalKVCacheRef(n, WIDTH) for n in range(LAYERS)]
    worker = CPUOffloadingWorker(CanonicalKVCaches(tensors, [refs]), 1, BLOCKS)
    rows = []
    for blocks in JOBS:
        rows.append(Jobs(worker, caches, blocks).measured())
        store("offloading", rows)
        print(rows[-1], flush=True)
    worker.shutdown()
    return [f"{row['blocks']} blocks: bytes differ" for row in rows if not row["bytes_back"]]


class Jobs:
    """Jobs of so many blocks, stored and loaded again and again."""

    numbers = iter(range(1_000_000))

    def __init__(self, worker: Any, caches: list[torch.Tensor], blocks: int) -> None:
        self.worker, self.caches, self.blocks = worker, caches, blocks
        order = torch.randperm(BLOCKS)[:blocks].tolist()
        self.rows = order
        self.gpu = GPULoadStoreSpec(order, [blocks], [0])
        self.host = CPULoadStoreSpec(list(range(blocks)))

    def measured(self) -> dict[str, Any]:
        """Medians, and whether bytes come back."""
        expected = [cache.cpu()[self.rows] for cache in self.caches]
        store_us = self.submitted(lambda n: self.worker.submit_store(n, self.gpu, self.host))
        for cache in self.caches:
            cache.zero_()
        load_us = self.submitted(lambda n: self.worker.submit_load(n, self.host, self.gpu))
        back = zip(self.caches, expected, strict=True)
        same = all(torch.equal(cache.cpu()[self.rows], e) for cache, e in back)
        for cache, e in zip(self.caches, expected, strict=True):
            cache[self.rows] = e.to(DEVICE)
        return {
            "blocks": self.blocks,
            "layers": LAYERS,
            "bytes": self.blocks * LAYERS * WIDTH,
            "submit_store_us": store_us,
            "submit_load_us": load_us,
            "swap_blocks_batch_us": self.operator_us(),
            "bytes_back": same,
        }

    def submitted(self, submit: Callable[[int], bool]) -> float:
        """Median microseconds until a job's submission returns; each job ends before the next."""
        times = []
        for _ in range(TURNS + 1):
            number = next(self.numbers)
            start = time.perf_counter()
            submit(number)
            times.append(time.perf_counter() - start)
            self.worker.wait({number})
            self.worker.get_finished()
        return median(times[1:]) * 1e6

    def operator_us(self) -> float:
        """Median microseconds of the operator alone, from the cache to page-locked memory."""
        host = torch.empty((LAYERS, self.blocks, WIDTH), dtype=torch.int8, pin_memory=True)
        of = [cache.data_ptr() + row * WIDTH for cache in self.caches for row in self.rows]
        to = [host.data_ptr() + n * WIDTH for n in range(len(of))]
        given = [torch.tensor(one) for one in (of, to, [WIDTH] * len(of))]
        times = []
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(TURNS + 1):
                torch.cuda.synchronize()
                start = time.perf_counter()
                ops.swap_blocks_batch(*given)
                times.append(time.perf_counter() - start)
            torch.cuda.synchronize()
        return median(times[1:]) * 1e6
