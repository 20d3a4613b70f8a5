"""Swap as a KV connector, whose hooks vLLM calls when blocks must be copied out and back.

vLLM creates the connector twice. The scheduler's half keeps track of the host blocks of each
request and of the copies for the pass being scheduled. The worker's half copies: out in
`handle_preemptions`, before the pass writes to the cache, and in in `start_load_kv`, before the
forward pass.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.outputs import KVConnectorOutput

from kvscope.base.errors import BadInput
from kvscope.engine.overflow.host_pool import HostPool
from kvscope.engine.overflow.host_tier import HostTier
from kvscope.engine.overflow.policy import Victim, VictimBlocks
from kvscope.engine.recording import Transfer
from kvscope.engine.request_ids import external_id
from kvscope.engine.vllm.connectors import copies
from kvscope.engine.vllm.connectors.virtual import VirtualWorker
from kvscope.engine.vllm.kv_groups import groups_of, in_order, require_movable
from kvscope.plan.actions import Action
from kvscope.tables.copies import IN, KV, OUT, VIRTUAL_CLOCK
from kvscope.tables.kv_plan import has_one_block_table, held_blocks

if TYPE_CHECKING:
    from kvscope.engine.devices.platform import Platform
    from kvscope.engine.vllm.link import Link

Blocks = tuple[int, ...]
Order = tuple[str, Blocks, Blocks]  # the workload's request, blocks of the cache, of the pool


class SwapWorker(VirtualWorker):
    """A pass waits for its copies, which are on the link one after another."""

    def before_pass(self, orders: "SwapOrders") -> None:
        """Take the time of the orders before the pass."""
        self._done = list(orders.before_pass(self.link))

    def after_pass(self, orders: "SwapOrders", empty: bool) -> KVConnectorOutput | None:
        """Take the time of the orders after the pass; returns all copies of the pass."""
        done = [*self._done, *orders.after_pass(self.link)]
        return KVConnectorOutput(kv_connector_worker_meta=SwapReport(done)) if done else None


@dataclass
class SwapOrders(KVConnectorMetadata):
    """The copies of one pass; on a device without a worker, it says how long that takes."""

    virtual_worker: ClassVar[type[VirtualWorker]] = SwapWorker
    out: list[Order] = field(default_factory=list)
    into: list[Order] = field(default_factory=list)

    def before_pass(self, link: "Link") -> Iterator[Transfer]:
        """Take the virtual time of the copies before the pass, out first, once the link is free."""
        for direction, ordered in ((OUT, self.out), (IN, self.into)):
            for request_id, blocks, host in ordered:
                start_ns = link.begin_ns()
                device_s, issue_s = link.costs.copy_s(host, direction)
                link.clock.wait(device_s)
                yield Transfer(
                    request_id,
                    direction,
                    KV,
                    len(blocks),
                    len(blocks) * link.costs.block_bytes,
                    start_ns,
                    start_ns + round(issue_s * 1e9),
                    partial(float, device_s),
                    clock=VIRTUAL_CLOCK,
                )

    def after_pass(self, link: "Link") -> Iterator[Transfer]:
        """Take the virtual time of copies after the pass: there are none."""
        return iter(())


@dataclass
class SwapReport(KVConnectorWorkerMetadata):
    """Copies made for one pass."""

    transfers: list[Transfer]

    def aggregate(self, other: "SwapReport") -> "SwapReport":
        """The joined reports of two workers."""
        return SwapReport(self.transfers + other.transfers)


class SwapConnector(KVConnectorBase_V1, SupportsHMA, HostTier):
    """Moves the blocks of preempted requests to a host pool, and back."""

    # Nothing is handed to another engine, so no request waits for a delivery.
    requires_kv_delivery = False
    present = True

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.groups = groups_of(kv_cache_config)
        settings = self._kv_transfer_config.kv_connector_extra_config
        self.setting = f"overflow={settings['policy']}"
        require_movable(self.groups, self.setting)
        self.one_block_table = has_one_block_table(self.groups)
        if kv_cache_config.needs_kv_cache_zeroing:
            # It would clear a victim's blocks before they are copied out.
            raise BadInput(
                f"{self.setting} needs a model whose new blocks vLLM does not clear; use another "
                "model, or overflow=recompute"
            )
        self.block_size = self.groups[0].block_tokens
        self.pinned = bool(settings["pinned"])
        self.copies = copies.Coalesced() if settings["coalesced"] else copies.PerBlock()
        self.pool = HostPool(int(settings["host_blocks"]))
        self.orders = SwapOrders()
        self.found: dict[str, int] = {}  # tokens in the prefix cache, of requests looked up
        self.done: list[Transfer] = []  # the worker's half: those of the pass under way
        self.platform: Platform  # the worker's half: set before anything is copied

    @property
    def host_blocks_used(self) -> int:
        """Blocks of the host pool in use."""
        return self.pool.used

    @property
    def host_blocks_total(self) -> int:
        """Blocks of the host pool."""
        return self.pool.size

    def __contains__(self, request_id: str) -> bool:
        """Whether a preempted request's tokens are kept on the host."""
        return request_id in self.pool

    # ------------------------------------------------------------------ the scheduler's half

    def victim(self, request: Any) -> Victim:
        """A request that is preempted, with what the pool has room for."""
        victim = Victim.of(request)
        return replace(victim, room=self.has_room(victim.tokens))

    def has_room(self, tokens: int) -> bool:
        """Whether the pool has room for K and V of a request's tokens."""
        context = np.array(tokens)
        blocks = sum(held_blocks(group, context, context) for group in self.groups)
        return bool(blocks <= self.pool.free)

    def keep(self, action: Action, request_id: str, tokens: int, blocks: VictimBlocks) -> bool:
        """Order the copy of a victim's blocks, by an action that copies."""
        return action.copies and self.swap_out(request_id, tokens, blocks)

    def swap_out(self, request_id: str, tokens: int, blocks: VictimBlocks) -> bool:
        """Order the copy of a victim's blocks; False if the pool has no room for them.

        Those that another request holds stay in the cache, and are not copied.
        """
        used = blocks[: -(-tokens // self.block_size) * len(self.groups)]
        copied = tuple(block for block in used if block is not None)
        allocation = self.pool.allocate(request_id, tokens, len(copied))
        if allocation is None:
            return False
        self.pool.leave_out(
            request_id, frozenset(position for position, block in enumerate(used) if block is None)
        )
        if self.checks is not None:
            self.checks.record_swap_out(request_id, len(used))
        if copied:
            self.orders.out.append((external_id(request_id), copied, allocation.blocks))
        return True

    def loadable(self, request: Any, cached: int) -> int:
        """Tokens in the pool that follow the cached tokens without a gap.

        Where KV groups differ none are cached, and what a window has left behind is not needed.
        """
        allocation = self.pool.allocation(request.request_id)
        if allocation is None:
            return 0
        if not self.one_block_table:
            return allocation.tokens
        first = cached // self.block_size
        end = first + len(allocation.positions_from(first))
        return max(0, min(allocation.tokens, end * self.block_size) - cached)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens in the pool beyond those computed; they are loaded before the forward pass."""
        self.found[request.request_id] = num_computed_tokens
        return self.loadable(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """A request that resumes has its new blocks: order the copy, free its host blocks.

        What it found in the prefix cache is not copied.
        """
        source = self.pool.release(request.request_id)
        cached = self.found.pop(request.request_id, 0) // self.block_size
        if source is None or not num_external_tokens:
            return
        new = dict(enumerate(in_order(blocks.get_block_ids())))
        places = source.positions_from(cached) if self.one_block_table else list(source.held)
        into = {position: block for position in places if (block := new.get(position)) is not None}
        if self.checks is not None:
            self.checks.record_swap_in(request.request_id, list(into))
        host = tuple(source.held[position] for position in into)
        self.orders.into.append((external_id(request.request_id), tuple(into.values()), host))

    def build_connector_meta(self, scheduler_output: Any) -> SwapOrders:
        """Hand over the orders of this pass."""
        orders, self.orders = self.orders, SwapOrders()
        return orders

    def joined(self, undone: SwapOrders, orders: SwapOrders) -> SwapOrders:
        """The orders of a schedule, with the copies that an empty schedule before it ordered."""
        orders.out[:0], orders.into[:0] = undone.out, undone.into
        return orders

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """A request that ends or is aborted while swapped out leaves the pool."""
        self.pool.release(request.request_id)
        self.found.pop(request.request_id, None)
        return False, None

    request_finished_all_groups = request_finished

    def update_connector_output(self, connector_output: Any) -> None:
        """Receive the transfers of the worker's half."""
        report = connector_output.kv_connector_worker_meta
        if report is not None:
            self.recording.add_transfers(report.transfers)

    # --------------------------------------------------------------------- the worker's half

    def attach(self, model: Any, platform: "Platform") -> None:
        """Receive the worker's model and the device, once both are there."""
        self.platform = platform

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """View the cache as planes and allocate a host pool of the same shape."""
        self.layers = kv_caches
        # Layers of different KV groups have the same memory, each for blocks of its own.
        apart = {cache.data_ptr(): cache for cache in kv_caches.values()}
        self.cache = copies.cache_planes(list(apart.values()))
        self.host = self.allocate(self.cache, self.pool.size)
        self.pieces = len(self.cache)  # contiguous pieces of a block
        self.block_bytes = sum(plane.shape[1] for plane in self.cache)

    def allocate(self, like: copies.Planes, blocks: int) -> copies.Planes:
        """Host memory of so many blocks for planes like these."""
        planes, self.host_memory = copies.host_planes(like, blocks, self.pinned)
        return planes

    def handle_preemptions(self, kv_connector_metadata: SwapOrders) -> None:
        """Copy out, before anything of the pass can write to the victims' blocks."""
        for order in kv_connector_metadata.out:
            self._carry_out(order, OUT, self.copies.out)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Copy in, before the forward pass reads the blocks."""
        for order in self._get_connector_metadata().into:
            self._carry_out(order, IN, self.copies.into)

    def _carry_out(self, order: Order, direction: str, copy: Callable[..., None]) -> None:
        request_id, blocks, host = order
        start_ns = self.platform.clock.now_ns()
        seconds = self.platform.timed(lambda: copy(self.cache, blocks, self.host, host))
        end_ns = self.platform.clock.now_ns()
        moved = len(blocks) * self.block_bytes
        self.done.append(
            Transfer(
                request_id,
                direction,
                KV,
                len(blocks),
                moved,
                start_ns,
                end_ns,
                seconds,
                clock=self.platform.copy_clock,
            )
        )

    def build_connector_worker_meta(self) -> SwapReport | None:
        """Report what was copied for this pass."""
        done, self.done = self.done, []
        return SwapReport(done) if done else None

    # ------------------------------------------------------- nothing happens layer by layer

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads end before the forward pass."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """No-op: only a victim's blocks are saved."""

    def wait_for_save(self) -> None:
        """Copies are ordered before the forward pass on its own stream."""
