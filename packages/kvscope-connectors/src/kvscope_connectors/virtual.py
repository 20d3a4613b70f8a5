"""The worker of vLLM's offloading on a virtual clock.

It does what vLLM's does on a GPU (`vllm.v1.kv_offload.cpu.gpu_worker`). Stores wait until the next
pass begins, or the pass that gives their blocks away, which waits for their end. Loads follow the
pass that they are ordered with. Each direction has one queue. The host asks which jobs have ended
once it has launched a pass, so it learns of others with a later pass. Where nothing runs it asks
again and again: the clock then advances to the next end.

Where the host copies by itself, it does so in the same order, and knows at once.
"""

from dataclasses import dataclass
from functools import partial

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
)
from vllm.v1.outputs import KVConnectorOutput

from kvscope.api.tables import copies
from kvscope.api.vllm import connectors
from kvscope_connectors.reports import Copied, NativeReport


@dataclass(frozen=True)
class Submitted:
    """A job in its queue; `loads` is the request that it loads, if any."""

    copied: Copied
    loads: str | None


class VirtualOffloading(connectors.VirtualWorker):
    """The copies of one engine's jobs on its virtual clock."""

    def __init__(self, link: connectors.Link) -> None:
        super().__init__(link)
        self._clock, self._costs = link.clock, link.costs
        self._deferred: dict[int, int] = {}  # stores of the last pass, and their blocks
        self._submitted: dict[int, Submitted] = {}
        self._free_ns = {copies.OUT: 0, copies.IN: 0}  # when each queue is empty
        self._polled_ns = 0  # when the host asked which jobs have ended

    def before_pass(self, orders: OffloadingConnectorMetadata) -> None:
        """Submit the stores of the last pass, and wait for those that this one needs ended."""
        flushed = orders.jobs_to_flush or set()
        stores = {number: len(job.src_spec.block_ids) for number, job in orders.store_jobs.items()}
        self._deferred |= {number: stores.pop(number) for number in flushed & stores.keys()}
        for number, blocks in self._deferred.items():
            self._submit(number, blocks, copies.OUT)
        for number in flushed & self._submitted.keys():
            self._advance_to(self._submitted[number].copied.end_ns)
        self._deferred = stores
        self._polled_ns = self._clock.now_ns()

    def after_pass(self, orders: OffloadingConnectorMetadata, empty: bool) -> KVConnectorOutput:
        """Submit the loads of the pass, and say which jobs have ended."""
        for number, job in orders.load_jobs.items():
            self._submit(number, len(job.dst_spec.block_ids), copies.IN, job.req_id)
        if self._costs.host_copies or empty:
            self._polled_ns = self._clock.now_ns()
        if empty and self._submitted and not self._ended():
            self._advance_to(min(job.copied.end_ns for job in self._submitted.values()))
            self._polled_ns = self._clock.now_ns()
        return self._report()

    def _submit(self, number: int, blocks: int, direction: str, loads: str | None = None) -> None:
        seconds = self._costs.offloading_s(blocks, direction)
        start_ns = max(self._clock.now_ns(), self._free_ns[direction])
        end_ns = start_ns + round(seconds * 1e9)
        self._free_ns[direction] = end_ns
        moved = blocks * self._costs.block_bytes
        copied = Copied(
            number, moved, start_ns, end_ns, partial(float, seconds), clock=copies.VIRTUAL_CLOCK
        )
        self._submitted[number] = Submitted(copied, loads)
        if self._costs.host_copies:
            self._advance_to(end_ns)

    def _advance_to(self, time_ns: int) -> None:
        self._clock.wait(max(0, time_ns - self._clock.now_ns()) * 1e-9)

    def _ended(self) -> list[int]:
        return [
            number
            for number, job in self._submitted.items()
            if job.copied.end_ns <= self._polled_ns
        ]

    def _report(self) -> KVConnectorOutput:
        report, loaded = NativeReport(), set()
        for number in self._ended():
            job = self._submitted.pop(number)
            report.mark_completed(number)
            stats = report.transfer_stats
            way = stats.store if job.loads is None else stats.load
            way.record(job.copied.bytes, job.copied.seconds())
            report.copied.append(job.copied)
            if job.loads is not None:
                loaded.add(job.loads)
        return KVConnectorOutput(
            finished_recving=loaded or None,
            kv_connector_worker_meta=report if report.copied else None,
        )
