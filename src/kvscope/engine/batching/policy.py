"""What a batching policy is."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from kvscope.plan.fields import impossible
from kvscope.plan.parts import Conditions
from kvscope.plan.policy import Batching


class Requests(Protocol):
    """The scheduler as a batching policy sees it: its requests, and which of them vLLM is shown.

    A request is vLLM's own (`vllm.v1.request.Request`).
    """

    waiting: Any
    """Waiting requests, in order."""

    def swapped_out(self, request: Any) -> bool:
        """Whether a request's blocks lie in the host pool."""

    def admit_only(self, admits: Callable[[Any], bool]) -> AbstractContextManager[None]:
        """Inside, vLLM sees waiting requests only while their first one is admitted."""

    def hide_running(self) -> AbstractContextManager[None]:
        """Inside, vLLM does not see the running requests; they keep their places."""

    def undo_empty_schedule(self, empty: Any) -> None:
        """Undo the bookkeeping of an empty schedule that is not the answer."""


class BatchingPolicy(Batching):
    """How forward passes are filled; by default prompts are computed whole, in vLLM's order.

    Its fields are the keys of its configuration. Private attributes (`_seen: int = 0`) may hold
    what it learns: an engine has a policy of its own.
    """

    def engine_arguments(self) -> dict[str, Any]:
        """What it adds to vLLM's `EngineArgs`."""
        return {"enable_chunked_prefill": False}

    def fill(self, scheduler: Requests, schedule: Callable[[], Any]) -> Any:
        """Choose the requests of the next forward pass, and their tokens.

        `schedule()` has vLLM choose among the requests that the scheduler shows it, and returns
        its `SchedulerOutput`, which is the answer.
        """
        return schedule()

    def check(self, experiment: Conditions) -> None:
        """Refuse passes in which a prompt may not fit."""
        engine = experiment.engine
        if engine.max_num_batched_tokens < engine.max_model_len:
            raise impossible(
                f"engine.max_num_batched_tokens ({engine.max_num_batched_tokens}) must be at least "
                f"engine.max_model_len ({engine.max_model_len}) with batching={self.name}, which "
                "computes a prompt whole",
                "engine.max_num_batched_tokens",
                "engine.max_model_len",
            )
