"""Recorder of the jobs that vLLM's `OffloadingConnector` decides, orders and copies.

The scheduler's half notes each job when vLLM orders it: for which request, when, which blocks. The
worker's half reports when the copy began and how long it took once it has ended, which may be some
passes later.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    TransferJob,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult

from kvscope.api.engines import rows
from kvscope.api.tables import actions, copies
from kvscope.api.vllm import connectors
from kvscope.api.vllm_facts import groups_of
from kvscope_connectors.reports import Copied, NativeReport
from kvscope_connectors.virtual import VirtualOffloading

if TYPE_CHECKING:
    from kvscope.api.engines import Platform


@dataclass
class NativeOrders(OffloadingConnectorMetadata):
    """vLLM's orders of a pass, and of its requests the tokens that were loaded before it."""

    virtual_worker: ClassVar[type[connectors.VirtualWorker]] = VirtualOffloading
    loaded_tokens: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Order:
    """A job that vLLM has ordered and that has not ended."""

    request_id: str
    direction: str
    blocks: int
    step: int
    job: rows.Job


class NativeConnector(OffloadingConnector, connectors.HostTier):
    """Records what vLLM's connector does."""

    asynchronous = True

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        groups = groups_of(kv_cache_config)
        settings = self._kv_transfer_config.kv_connector_extra_config
        connectors.require_one_block_table(groups, f"overflow={settings['policy']}")
        self.block_size = groups[0].block_tokens
        self.ordered: dict[int, Order] = {}  # by job
        self.loading: dict[str, tuple[int, int]] = {}  # tokens found in the cache, on the host
        self.stored_by: dict[Any, set[Any]] = {}  # of each key, which of its store were loaded
        self.arrivals: dict[str, list[int]] = {}  # of each request's load: when it was noticed
        self.platform: Platform  # the worker's half: set before anything is copied

    # ------------------------------------------------------------------ the scheduler's half

    @property
    def host_blocks_used(self) -> int:
        """Blocks of the host that hold tokens, or are about to."""
        manager: Any = self.scheduler.manager
        return int(manager._num_allocated_chunks - len(manager._free_list))

    @property
    def host_blocks_held(self) -> int:
        """Blocks that are being copied: requests that have ended may leave the others there."""
        manager: Any = self.scheduler.manager
        return self.host_blocks_used - int(manager._num_evictable_cache_chunks)

    @property
    def host_blocks_total(self) -> int:
        """Number of blocks that the host tier holds."""
        manager: Any = self.scheduler.manager
        return int(manager._num_chunks)

    def begin(self, recording: rows.Recording) -> None:
        """Record into `recording` from now on, from an empty host."""
        super().begin(recording)
        self.scheduler.reset_cache()
        self.ordered.clear()
        self.loading.clear()
        self.stored_by.clear()
        self.arrivals.clear()

    def keep(self, action: actions.Action, request_id: str, tokens: int, blocks: Any) -> bool:
        """Keep nothing of a victim beyond its stored blocks; its full blocks may be compared."""
        if self.checks is not None:
            self.checks.record_rebuild(request_id, tokens // self.block_size)
        return False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note what a request loads before its next pass."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens:
            state = self.scheduler._req_status[request.request_id]
            computed = state.num_locally_computed_tokens
            self.loading[request.request_id] = computed, num_external_tokens

    def build_connector_meta(self, scheduler_output: Any) -> NativeOrders:
        """Note the jobs that vLLM orders, and those whose end it has to wait for."""
        orders = super().build_connector_meta(scheduler_output)
        assert isinstance(orders, OffloadingConnectorMetadata)
        step = len(self.recording.passes)
        for number, job in orders.load_jobs.items():
            self._note(number, job, copies.IN, job.dst_spec, step)
        for number, job in orders.store_jobs.items():
            self._note(number, job, copies.OUT, job.src_spec, step)
        for number in orders.jobs_to_flush or ():
            if (order := self.ordered.get(number)) and order.job.awaited_step is None:
                awaited = replace(order.job, awaited_step=step)
                self.ordered[number] = replace(order, job=awaited)
        return NativeOrders(
            orders.load_jobs,
            orders.store_jobs,
            orders.jobs_to_flush,
            dict(self._loaded(scheduler_output)),
        )

    def _note(self, number: int, job: TransferJob, direction: str, cache: Any, step: int) -> None:
        keys = self.scheduler._jobs[number].keys
        loaded: set[Any] = set()
        for key in keys:
            if direction == copies.OUT:
                self.stored_by[key] = loaded
            else:
                self.stored_by[key].add(key)
        noticed: list[int] = []
        if direction == copies.IN:
            self.arrivals[job.req_id] = noticed
        facts = rows.Job(
            number,
            self.clock.now_ns(),
            int(cache.block_indices[0]),
            partial(len, loaded),
            lambda: noticed[0] if noticed else None,
        )
        blocks = len(cache.block_ids)
        self.ordered[number] = Order(
            connectors.external_id(job.req_id), direction, blocks, step, facts
        )

    def _loaded(self, scheduler_output: Any) -> Any:
        """Context tokens of the requests of a pass that were loaded before it.

        The newest token is computed even where it was loaded.
        """
        for name, context in connectors.contexts(scheduler_output):
            if self.checks is not None:
                self.checks.keep_first(name, context // self.block_size)
            if name in self.loading:
                local, external = self.loading.pop(name)
                yield name, min(external, context - local)

    def arrived(self, request_id: str, step: int) -> None:
        """Note when vLLM learned that a request's loaded tokens are there."""
        self.arrivals.pop(request_id, []).append(step)

    def joined(self, undone: NativeOrders, orders: NativeOrders) -> NativeOrders:
        """The orders of both schedules."""
        return NativeOrders(
            undone.load_jobs | orders.load_jobs,
            undone.store_jobs | orders.store_jobs,
            (undone.jobs_to_flush or set()) | (orders.jobs_to_flush or set()),
            undone.loaded_tokens | orders.loaded_tokens,
        )

    def update_connector_output(self, connector_output: Any) -> None:
        """Record the copies that have ended."""
        super().update_connector_output(connector_output)
        report = connector_output.kv_connector_worker_meta
        for copied in report.copied if isinstance(report, NativeReport) else ():
            if order := self.ordered.pop(copied.number, None):
                self.recording.transfers.append(self._transfer(order, copied))

    def _transfer(self, order: Order, copied: Copied) -> rows.Transfer:
        """The record of a copy."""
        return rows.Transfer(
            order.request_id,
            order.direction,
            copies.KV,
            order.blocks,
            copied.bytes,
            copied.start_ns,
            copied.end_ns,
            copied.seconds,
            clock=copied.clock,
            step=order.step,
            job=order.job,
        )

    def request_finished(self, request: Any, block_ids: Any) -> Any:
        """A request that is aborted is loaded for nothing."""
        self.loading.pop(request.request_id, None)
        return super().request_finished(request, block_ids)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        """`request_finished` for all KV groups."""
        self.loading.pop(request.request_id, None)
        return super().request_finished_all_groups(request, block_ids)

    # --------------------------------------------------------------------- the worker's half

    def attach(self, model: Any, platform: "Platform") -> None:
        """Receive the worker's model and the device, once both are there."""
        self.platform = platform

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Have vLLM make its worker, and time what that copies."""
        super().register_kv_caches(kv_caches)
        assert self.connector_worker is not None
        worker = self.connector_worker.worker
        assert worker is not None
        self.timed = TimedWorker(worker, self)
        self.connector_worker.worker = self.timed
        self.host_memory = getattr(worker, "host_memory", "pinned")
        self.pieces, self.layers = len(kv_caches), kv_caches

    def build_connector_worker_meta(self) -> NativeReport | None:
        """Report what has ended."""
        report = super().build_connector_worker_meta()
        if report is None:
            return None
        return NativeReport(report.completed_jobs, report.transfer_stats, self.timed.take())


class TimedWorker(OffloadingWorker):
    """A worker of vLLM's whose copies are timed."""

    def __init__(self, worker: OffloadingWorker, connector: NativeConnector) -> None:
        self._worker, self._connector = worker, connector
        self._launched: dict[int, tuple[int, int, Callable[[], float]]] = {}
        self._copied: list[Copied] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Store, and note when that began."""
        return self._submit(job_id, lambda: self._worker.submit_store(job_id, src_spec, dst_spec))

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Load, and note when that began."""
        return self._submit(job_id, lambda: self._worker.submit_load(job_id, src_spec, dst_spec))

    def _submit(self, job_id: int, submit: Callable[[], bool]) -> bool:
        platform, taken = self._connector.platform, []
        start_ns = platform.clock.now_ns()
        seconds = platform.timed(lambda: taken.append(submit()))
        self._launched[job_id] = start_ns, platform.clock.now_ns(), seconds
        return all(taken)

    def get_finished(self) -> list[TransferResult]:
        """Ended copies, with their seconds as in vLLM's metrics.

        A GPU's are by vLLM's events: its copies have streams of their own.
        """
        return [self._note(result) for result in self._worker.get_finished()]

    def _note(self, result: TransferResult) -> TransferResult:
        start_ns, end_ns, timed_s = self._launched.pop(result.job_id)
        took_s = timed_s() if result.transfer_time is None else result.transfer_time
        moved, clock = result.transfer_size or 0, self._connector.platform.copy_clock
        copied = Copied(result.job_id, moved, start_ns, end_ns, partial(float, took_s), clock)
        self._copied.append(copied)
        return replace(result, transfer_time=took_s)

    def take(self) -> list[Copied]:
        """Jobs that have ended since the last call."""
        copied, self._copied = self._copied, []
        return copied

    def wait(self, job_ids: set[int]) -> None:
        """Wait for these jobs."""
        self._worker.wait(job_ids)

    def shutdown(self) -> None:
        """End the worker."""
        self._worker.shutdown()
