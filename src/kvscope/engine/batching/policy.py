"""What a batching policy is."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvscope.plan.fields import impossible
from kvscope.plan.policy import Batching

if TYPE_CHECKING:
    from kvscope.engine.scheduler import RecordingScheduler
    from kvscope.plan.experiment import Experiment


class BatchingPolicy(Batching):
    """How forward passes are filled; by default prompts are computed whole, in vLLM's order.

    Its fields are the keys of its configuration. Private attributes (`_seen: int = 0`) may hold
    what it learns: an engine has a policy of its own.
    """

    def engine_arguments(self) -> dict[str, Any]:
        """What it adds to vLLM's `EngineArgs`."""
        return {"enable_chunked_prefill": False}

    def fill(self, scheduler: "RecordingScheduler", schedule: Callable[[], Any]) -> Any:
        """Choose the requests of the next forward pass, and their tokens.

        `schedule()` has vLLM choose among the requests that the scheduler shows it, and returns
        its `SchedulerOutput`, which is the answer.
        """
        return schedule()

    def check(self, experiment: "Experiment") -> None:
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
