"""Copies of vLLM's offloading on a CPU: vLLM's own worker needs a GPU."""

from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from kvscope.api.vllm import connectors


class HostWorker(OffloadingWorker):
    """Copies the blocks of a job at once; the host waits meanwhile.

    `tensors` have the cache: (blocks, bytes of a block) each; `blocks` are those of the host.
    """

    def __init__(self, tensors: list[torch.Tensor], blocks: int) -> None:
        self.cache = [tensor.view(torch.uint8) for tensor in tensors]
        self.host, self.host_memory = connectors.host_planes(self.cache, blocks, pinned=True)
        self._copies = connectors.PerBlock()
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy blocks of the cache to the host."""
        blocks, host = src_spec.block_ids.tolist(), dst_spec.block_ids.tolist()
        self._copies.out(self.cache, blocks, self.host, host)
        return self._note(job_id, len(blocks))

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy blocks of the host into the cache."""
        host, blocks = src_spec.block_ids.tolist(), dst_spec.block_ids.tolist()
        self._copies.into(self.cache, blocks, self.host, host)
        return self._note(job_id, len(blocks))

    def _note(self, job_id: int, blocks: int) -> bool:
        moved = blocks * sum(plane.shape[1] for plane in self.cache)
        self._done.append(TransferResult(job_id, success=True, transfer_size=moved))
        return True

    def get_finished(self) -> list[TransferResult]:
        """The copies since the last call."""
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """All copies have ended."""


class HostOffloadingSpec(CPUOffloadingSpec):
    """vLLM's host cache, filled and read by the host itself."""

    def get_worker(self, kv_caches: Any) -> HostWorker:
        """A worker of these caches."""
        return HostWorker([kv_tensor.tensor for kv_tensor in kv_caches.tensors], self.num_chunks)
