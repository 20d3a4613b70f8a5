"""The base class of batching policies."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from kvscope.plan.fields import impossible
from kvscope.plan.parts import Conditions
from kvscope.plan.policy import Batching


class Requests(Protocol):
    """The view of the scheduler that a batching policy gets, to hide requests from vLLM.

    A request is vLLM's own (`vllm.v1.request.Request`).
    """

    waiting: Any
    """Waiting requests, in order."""

    def decodes_next(self, request: Any) -> bool:
        """Whether a waiting request has only its newest token to compute when it resumes."""

    @property
    def loaded(self) -> list[Any]:
        """The waiting requests whose blocks vLLM's offloading has loaded."""

    def has_room(self, request: Any) -> bool:
        """Whether a waiting request that is computed from its start may be admitted."""

    def admit_only(self, admits: Callable[[Any], bool]) -> AbstractContextManager[None]:
        """Within the context, vLLM sees waiting requests only while `admits` accepts the first."""

    def hide_running(self) -> AbstractContextManager[None]:
        """Within the context, vLLM does not see the running requests; they keep their order."""

    def undo_empty_schedule(self, empty: Any) -> None:
        """Undo the bookkeeping of an empty schedule that is not returned."""


class BatchingPolicy(Batching):
    """Base class: fills forward passes. By default prompts are computed whole, in vLLM's order.

    The fields of a subclass are its configuration keys. Private attributes (`_seen: int = 0`) may
    hold state: each engine has its own instance.
    """

    def engine_arguments(self) -> dict[str, Any]:
        """Additional arguments for vLLM's `EngineArgs`."""
        return {"enable_chunked_prefill": False}

    def fill(self, scheduler: Requests, schedule: Callable[[], Any]) -> Any:
        """Select the requests of the next forward pass and their tokens.

        `schedule()` calls vLLM's scheduler on the requests that are not hidden. Returns vLLM's
        `SchedulerOutput`.
        """
        return schedule()

    def check(self, experiment: Conditions) -> None:
        """Refuse an engine.max_num_batched_tokens into which a prompt may not fit."""
        engine = experiment.engine
        if engine.max_num_batched_tokens < engine.max_model_len:
            raise impossible(
                f"engine.max_num_batched_tokens ({engine.max_num_batched_tokens}) must be at least "
                f"engine.max_model_len ({engine.max_model_len}) with batching={self.name}, which "
                "computes a prompt whole",
                "engine.max_num_batched_tokens",
                "engine.max_model_len",
            )
