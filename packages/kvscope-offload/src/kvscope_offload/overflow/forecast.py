"""Forecast of a scheduler's requests, in the terms of overflow policies."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any, Protocol

from kvscope.api.policies import overflow
from kvscope_offload.overflow.outlook import preempted_again, preemptions, resuming_together
from kvscope_offload.overflow.victims import Foreseen, Growth, Outlook


class KnownScheduler(Protocol):
    """Attributes of kvscope's scheduler in vLLM that a forecast reads."""

    requests: Any  # by their ids
    waiting: Any  # in order
    block_size: int
    max_num_running_reqs: int
    max_num_scheduled_tokens: int
    kv_cache_manager: Any
    kept_free: int

    @property
    def all_running(self) -> list[Any]:
        """The running requests."""

    @property
    def kv_blocks_total(self) -> int:
        """Blocks that requests can use."""

    def swapped_out(self, request: Any) -> bool:
        """True if a preempted request's tokens are kept in the host pool."""


class Forecast:
    """Foresees preemptions of one scheduler's requests."""

    def __init__(self, scheduler: KnownScheduler) -> None:
        self._scheduler = scheduler

    def victim(self, request: overflow.KnownRequest) -> Foreseen:
        """A request that is preempted, with the requests that run with it and resume with it."""
        scheduler, victim = self._scheduler, Foreseen.of(request)
        beside = [running for running in scheduler.all_running if running is not request]
        ahead = [growth_of(running) for running in beside]
        queue = (
            waiting.num_tokens
            for waiting in scheduler.waiting
            if not scheduler.swapped_out(waiting)
        )
        return replace(
            victim,
            beside=len(beside),
            together=resuming_together(
                ahead,
                [request.num_tokens, *islice(queue, scheduler.max_num_running_reqs)],
                scheduler.block_size,
                self._blocks,
                scheduler.max_num_scheduled_tokens,
                scheduler.max_num_running_reqs,
            ),
            again=self._preempted_again(ahead, victim.tokens),
        )

    def outlook(self, request_id: str, kv_tokens: int, activation_tokens: int) -> Outlook:
        """The preemptions to come of a request of this pass, its first.

        The host has room for K and V of `kv_tokens` tokens, and for activations of
        `activation_tokens`. Called while the pass is scheduled, when the request runs already.
        """
        scheduler = self._scheduler
        before = takewhile(lambda running: running.request_id != request_id, scheduler.all_running)
        ahead = [growth_of(running) for running in before]
        request, size = scheduler.requests[request_id], scheduler.block_size
        growth = growth_of(request)
        victims = (
            replace(
                Foreseen.of(request),
                tokens=tokens,
                beside=len(ahead),
                again=self._preempted_again(
                    [growth_ahead.after(passes) for growth_ahead in ahead], tokens
                ),
                room=tokens <= kv_tokens,
                activations=tokens <= activation_tokens,
            )
            for tokens, passes in preemptions(ahead, growth, size, self._blocks)
        )
        return Outlook(growth, tuple(victims))

    @property
    def _blocks(self) -> int:
        """Blocks that running requests may fill."""
        return self._scheduler.kv_blocks_total - self._scheduler.kept_free

    def _preempted_again(self, ahead: Sequence[Growth], tokens: int) -> int:
        """Number of immediate further preemptions of a recomputed victim: 0 by today's rules."""
        scheduler = self._scheduler
        if not scheduler.kept_free:
            return 0
        watermark = scheduler.kv_cache_manager.watermark_blocks
        total = scheduler.kv_blocks_total
        return preempted_again(ahead, tokens, scheduler.block_size, total, watermark)


def growth_of(request: overflow.KnownRequest) -> Growth:
    """The tokens of a request in the cache: soon, and at its end. Its last token is not cached."""
    return Growth(request.num_tokens, request.num_prompt_tokens + request.max_tokens - 1)
