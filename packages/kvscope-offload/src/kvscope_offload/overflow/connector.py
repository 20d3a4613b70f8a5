"""Keeps the inputs of attention on the host, and rebuilds K and V from them.

The input of a layer's attention, its *activation*, is what the layer's `qkv_proj` takes: K and V
are one product of it, and a rotation. After each forward pass the activations of its tokens are
written through to a host pool, so a preemption has nothing to copy. On resumption they are copied
back, layer after layer is multiplied by its own `qkv_proj` and rotated to the tokens' positions,
and vLLM's attention backend writes K and V to the request's new blocks, in its own layout.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.forward_context import get_forward_context

from kvscope.api.engines import rows as engine_rows
from kvscope.api.policies import overflow
from kvscope.api.tables import actions, copies, rebuilds
from kvscope.api.vllm import connectors
from kvscope_offload.overflow.forecast import Forecast, KnownScheduler
from kvscope_offload.overflow.saving import Saving
from kvscope_offload.overflow.victims import Foreseen

if TYPE_CHECKING:
    from kvscope.api.engines import Platform


@dataclass(frozen=True)
class Rebuild:
    """A request of which `tokens` tokens are to be rebuilt, from position `begin` on.

    Those before were found in the prefix cache.
    """

    request_id: str  # of the workload
    begin: int
    tokens: int
    blocks: connectors.Blocks  # of the cache
    host: connectors.Blocks


@dataclass
class ActivationOrders(connectors.SwapOrders):
    """Orders of a pass: copies and rebuilds before it, saves after it."""

    block_bytes: int = 0  # of the activations of a block
    rebuild: list[Rebuild] = field(default_factory=list)
    saves: dict[int, int] = field(default_factory=dict)  # block of the cache: block of the pool
    saved_tokens: dict[str, int] = field(default_factory=dict)  # of each request that is kept
    save_runs: int = 0  # stretches of the pool that these tokens fill

    def before_pass(self, link: connectors.Link) -> Iterator[engine_rows.Transfer]:
        """Copies of K and V take their virtual time first, then each request is rebuilt."""
        yield from super().before_pass(link)
        for order in self.rebuild:
            start_ns = link.begin_ns()
            fetch_s, rebuild_s = link.costs.rebuild_s(order.tokens, order.host)
            link.clock.wait(fetch_s + rebuild_s)
            yield engine_rows.Transfer(
                order.request_id,
                copies.IN,
                copies.INPUTS,
                len(order.blocks),
                len(order.host) * self.block_bytes,
                start_ns,
                link.clock.now_ns(),
                partial(float, fetch_s),
                partial(float, rebuild_s),
                copies.VIRTUAL_CLOCK,
            )

    def after_pass(self, link: connectors.Link) -> Iterator[engine_rows.Transfer]:
        """The pass's activations are gathered at its end, and copied behind the next."""
        if not self.saves:
            return
        tokens = sum(self.saved_tokens.values())
        gather_s, copied_s = link.costs.save_s(tokens, self.save_runs)
        start_ns = link.clock.now_ns()
        link.clock.wait(gather_s)
        link.copy(copied_s)
        yield engine_rows.Transfer(
            None,
            copies.OUT,
            copies.INPUTS,
            len(self.saves),
            tokens * self.block_bytes // link.costs.block_size,
            start_ns,
            link.clock.now_ns(),
            partial(float, copied_s),
            clock=copies.VIRTUAL_CLOCK,
        )


class ActivationConnector(connectors.SwapConnector):
    """Writes activations through to a host pool; also swaps, if there is a pool for that.

    The policy decides of each request that begins whether it is kept. A request whose activations
    find no room is no longer kept: it is recomputed if it is preempted, and begins again.
    """

    orders: ActivationOrders
    policy: Saving  # the scheduler's half: set before anything is scheduled
    forecast: Forecast

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        settings = self._kv_transfer_config.kv_connector_extra_config
        connectors.require_one_block_table(self.groups, self.setting)
        self.activations = overflow.HostPool(int(settings["activation_blocks"]))
        (group,) = kv_cache_config.kv_cache_groups
        hidden_size = vllm_config.model_config.get_hidden_size()
        self.dtype: torch.dtype = vllm_config.model_config.dtype  # whatever that of K and V
        self.shape = (len(group.layer_names), hidden_size)  # of a token's activations
        token_bytes = self.shape[0] * hidden_size * self.dtype.itemsize
        self.activation_block_bytes = self.block_size * token_bytes
        self.orders = self._no_orders()

    def _no_orders(self) -> ActivationOrders:
        return ActivationOrders(block_bytes=self.activation_block_bytes)

    # ------------------------------------------------------------------ the scheduler's half

    @property
    def host_blocks_used(self) -> int:
        """Blocks of both pools in use."""
        return self.pool.used + self.activations.used

    @property
    def host_blocks_total(self) -> int:
        """Blocks of both pools."""
        return self.pool.size + self.activations.size

    @property
    def pool_facts(self) -> dict[str, int]:
        """The entries of run.json on the pools' sizes."""
        return super().pool_facts | {
            "activation_blocks_total": self.activations.size,
            "activation_block_bytes": self.activation_block_bytes,
        }

    def __contains__(self, request_id: str) -> bool:
        """True if a preempted request's tokens are kept on the host."""
        return request_id in self.pool or request_id in self.activations

    def follow(self, policy: overflow.OverflowPolicy, scheduler: KnownScheduler) -> None:
        """Receive what decides which requests are kept."""
        assert isinstance(policy, Saving), "its connector is for a subclass of Saving"
        self.policy, self.forecast = policy, Forecast(scheduler)

    def victim(self, request: Any) -> Foreseen:
        """A request that is preempted, with what either pool has of it or has room for."""
        victim = self.forecast.victim(request)
        return replace(
            victim,
            room=self.has_room(victim.tokens),
            activations=self._has_activations(victim.request_id, victim.tokens),
        )

    def _has_activations(self, request_id: str, tokens: int) -> bool:
        """True if the activations of a request's first `tokens` tokens are on the host."""
        allocation = self.activations.allocation(request_id)
        return allocation is not None and allocation.tokens == tokens

    def _begins_to_save(self, request_id: str) -> bool:
        """True if the policy writes through the activations of a request that begins."""
        room = self.pool.size * self.block_size
        free = self.activations.free * self.block_size
        return self.policy.saves(self.forecast.outlook(request_id, room, free))

    def keep(
        self,
        action: actions.Action,
        request_id: str,
        tokens: int,
        blocks: overflow.VictimBlocks,
    ) -> bool:
        """Activations are there already, or not: nothing is copied for them.

        They stay also where K and V are copied, for the next preemption.
        """
        if action.rebuilds and self._has_activations(request_id, tokens):
            if self.checks is not None:
                self.checks.record_rebuild(request_id, tokens // self.block_size)
            return True
        kept = super().keep(action, request_id, tokens, blocks)
        if not kept:
            self.activations.release(request_id)
        return kept

    def _to_rebuild(self, request_id: str) -> overflow.HostAllocation | None:
        """The activations that a request resumes from; None where its K and V are kept."""
        return None if request_id in self.pool else self.activations.allocation(request_id)

    def loadable(self, request: Any, cached: int) -> int:
        """Tokens in either pool beyond the cached ones."""
        to_rebuild = self._to_rebuild(request.request_id)
        return (
            super().loadable(request, cached)
            if to_rebuild is None
            else max(0, to_rebuild.tokens - cached)
        )

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """A request that resumes has its new blocks: order the rebuilding; its activations stay."""
        to_rebuild = self._to_rebuild(request.request_id)
        if to_rebuild is None or not num_external_tokens:
            super().update_state_after_alloc(request, blocks, num_external_tokens)
            return
        begin = self.found.pop(request.request_id, 0)
        some = slice(begin // self.block_size, len(to_rebuild.blocks))
        new, host = tuple(blocks.get_block_ids()[0][some]), to_rebuild.blocks[some]
        self.orders.rebuild.append(
            Rebuild(
                connectors.external_id(request.request_id), begin, num_external_tokens, new, host
            )
        )

    def build_connector_meta(self, scheduler_output: Any) -> ActivationOrders:
        """Hand over the orders of this pass, with where each token's activations are to be kept."""
        orders, self.orders = self.orders, self._no_orders()
        blocks_of = scheduler_output.kv_connector_block_state.get_block_ids
        for request_id, before in connectors.contexts(scheduler_output):
            tokens = scheduler_output.num_scheduled_tokens[request_id]
            first, last = before // self.block_size, -(-(before + tokens) // self.block_size)
            allocation = self.activations.allocation(request_id)
            if before != (allocation.tokens if allocation else 0):
                # It is not kept: its first tokens were found in the prefix cache.
                self.activations.release(request_id)
                continue
            if not before and not self._begins_to_save(request_id):
                continue
            allocation = self.activations.allocate(request_id, before + tokens, last)
            if allocation is None:
                self.activations.release(request_id)
                continue
            blocks, host = blocks_of(request_id)[0][first:last], allocation.blocks[first:last]
            orders.saves.update(zip(blocks, host, strict=True))
            orders.saved_tokens[request_id] = tokens
            orders.save_runs += stretches(host)
        return orders

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """A request that ends or is aborted leaves the pools."""
        self.activations.release(request.request_id)
        return super().request_finished(request, block_ids)

    request_finished_all_groups = request_finished

    # --------------------------------------------------------------------- the worker's half

    def attach(self, model: Any, platform: "Platform") -> None:
        """Note what each layer's `qkv_proj` takes, from now on."""
        super().attach(model, platform)
        self.attentions = [
            module
            for module in model.modules()
            if hasattr(module, "qkv_proj") and getattr(module, "attn", None) is not None
        ]
        for attention in self.attentions:
            attention.qkv_proj.register_forward_pre_hook(self._note)

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Allocate the pool of activations: of a token, all layers' lie together."""
        super().register_kv_caches(kv_caches)
        some = next(iter(kv_caches.values()))
        self.device = some.device
        width = self.activation_block_bytes
        like = torch.empty((0, width), dtype=torch.uint8, device=self.device)
        (self.kept,) = self.allocate([like], self.activations.size)
        self.host_rows = np.full(some.shape[0], -1)  # of each block of the cache
        self.noted: list[torch.Tensor] = []  # of the pass under way, layer after layer
        self.slots: npt.NDArray[np.int64] = np.empty(0, np.int64)  # of its tokens
        self.saving: Any = torch.cuda.Stream() if some.is_cuda else None

    def _note(self, _module: Any, arguments: Any) -> None:
        """Note a layer's activations; those of a dry run belong to no request."""
        if not self.has_connector_metadata() or not self._get_connector_metadata().saves:
            return
        if not self.noted:
            slots = next(iter(get_forward_context().slot_mapping.values()))
            self.slots = slots.cpu().numpy()  # the pass has not been launched: no wait
        self.noted.append(arguments[0])

    def wait_for_save(self) -> None:
        """Write the activations of the pass through to the pool."""
        if not self.noted:
            return
        orders = self._get_connector_metadata()
        blocks = np.fromiter(orders.saves, np.int64, len(orders.saves))
        self.host_rows[blocks] = np.fromiter(orders.saves.values(), np.int64, len(orders.saves))
        host_row = self.host_rows[self.slots // self.block_size]
        (rows,) = ((self.slots >= 0) & (host_row >= 0)).nonzero()
        to = host_row[rows] * self.block_size + self.slots[rows] % self.block_size
        self.host_rows[blocks] = -1
        start_ns = self.platform.clock.now_ns()
        seconds = self._save(rows, to)
        end_ns = self.platform.clock.now_ns()
        moved = len(rows) * self.activation_block_bytes // self.block_size
        clock = self.platform.copy_clock
        self.done.append(
            engine_rows.Transfer(
                None,
                copies.OUT,
                copies.INPUTS,
                len(blocks),
                moved,
                start_ns,
                end_ns,
                seconds,
                clock=clock,
            )
        )
        self.noted = []

    def _save(self, rows: npt.NDArray[np.int64], to: npt.NDArray[np.int64]) -> Callable[[], float]:
        """Copy these tokens of the pass to these places of the pool; gives the copies' seconds."""
        if self.saving is not None:
            return self._save_behind(rows, to)

        def copy() -> None:
            tokens = self._tokens()
            self.kept.view(-1, tokens.shape[1]).numpy()[to] = tokens.numpy()[rows]

        return self.platform.timed(copy)

    def _save_behind(
        self, rows: npt.NDArray[np.int64], to: npt.NDArray[np.int64]
    ) -> Callable[[], float]:
        """Save on a GPU: large copies on a separate stream, behind the next pass, timed there."""
        tokens, saving = self._tokens(), self.saving
        pool = self.kept.view(-1, tokens.shape[1])

        def copy() -> None:
            for first, last in runs(rows, to):
                source = tokens[rows[first] : rows[last - 1] + 1]
                pool[to[first] : to[last - 1] + 1].copy_(source, non_blocking=True)

        saving.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(saving):
            seconds = self.platform.timed(copy)
        tokens.record_stream(saving)
        return seconds

    def _tokens(self) -> torch.Tensor:
        """The activations of the pass: a row of bytes for each token, all layers' together."""
        return torch.stack(self.noted, dim=1).flatten(1).view(torch.uint8)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Copy in and rebuild, before the forward pass reads the blocks."""
        super().start_load_kv(forward_context, **kwargs)
        if self.saving is not None:
            torch.cuda.current_stream().wait_stream(self.saving)
        for order in self._get_connector_metadata().rebuild:
            self._carry_out_rebuild(order)

    def _carry_out_rebuild(self, order: Rebuild) -> None:
        platform, row_bytes = self.platform, self.activation_block_bytes
        copied: list[Callable[[], float]] = []
        rebuilt: list[Callable[[], float]] = []
        start_ns = platform.clock.now_ns()
        for first, last in rebuilds.rebuild_parts(order.tokens, self.block_size):
            shape = (last - first, row_bytes)
            staged = torch.empty(shape, dtype=torch.uint8, device=self.device)
            copied.append(platform.timed(partial(self._fetch, staged, order.host[first:last])))
            part = first * self.block_size
            tokens = min(order.tokens, last * self.block_size) - part
            begin = order.begin + part
            work = partial(self.rebuild, staged, order.blocks[first:last], begin, tokens)
            rebuilt.append(platform.timed(work))
        end_ns = platform.clock.now_ns()
        self.done.append(
            engine_rows.Transfer(
                order.request_id,
                copies.IN,
                copies.INPUTS,
                len(order.blocks),
                len(order.host) * row_bytes,
                start_ns,
                end_ns,
                lambda: sum(seconds() for seconds in copied),
                lambda: sum(seconds() for seconds in rebuilt),
                platform.copy_clock,
            )
        )

    def _fetch(self, staged: torch.Tensor, host: connectors.Blocks) -> None:
        self.copies.into([staged], range(len(host)), [self.kept], host)

    def rebuild(
        self, staged: torch.Tensor, blocks: connectors.Blocks, begin: int, tokens: int
    ) -> None:
        """Write K and V of `tokens` tokens from position `begin` on to blocks of the cache.

        `staged` has a row of bytes for each block: its tokens' activations of all layers.
        """
        inputs = staged.view(self.dtype).view(-1, *self.shape)[:tokens]
        positions = torch.arange(begin, begin + tokens, device=self.device)
        numbers = torch.tensor(blocks, device=self.device)
        places = torch.arange(tokens, device=self.device)
        size = self.block_size
        slots = numbers[places // size] * size + places % size
        for layer, module in enumerate(self.attentions):
            attention = module.attn
            # `forward`, not a call: the hook is for the tokens of a pass.
            both, _ = module.qkv_proj.forward(inputs[:, layer].contiguous())
            heads, kv_heads = attention.num_heads, attention.num_kv_heads
            width = attention.head_size
            q, k, v = both.split([heads * width, kv_heads * width, kv_heads * width], dim=-1)
            if hasattr(module, "rotary_emb"):
                _, k = module.rotary_emb(positions, q, k)
            attention.impl.do_kv_cache_update(
                attention,
                k.reshape(-1, kv_heads, width),
                v.reshape(-1, kv_heads, width),
                attention.kv_cache,
                slots,
            )


def runs(rows: npt.NDArray[np.int64], to: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """(first, last) of the stretches in which both are consecutive."""
    breaks = ((np.diff(rows) != 1) | (np.diff(to) != 1)).nonzero()[0] + 1
    bounds = [0, *breaks.tolist(), len(rows)]
    yield from pairwise(bounds)


def stretches(blocks: connectors.Blocks) -> int:
    """Number of stretches of neighbouring blocks."""
    return bool(blocks) + sum(after != before + 1 for before, after in pairwise(blocks))
