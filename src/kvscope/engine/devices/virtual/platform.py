"""The base of the devices on which vLLM schedules without a worker."""

from abc import abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.engine.devices.virtual.clock import VirtualClock
from kvscope.engine.devices.vllm_platform import VllmPlatform
from kvscope.plan.experiment import Experiment

if TYPE_CHECKING:
    from kvscope.engine.current import CurrentRecording
    from kvscope.engine.devices.virtual.costs import Costs
    from kvscope.engine.vllm.scheduler import PolicyScheduler
    from kvscope.engine.vllm.virtual.executor import PassListener


class VirtualPlatform(VllmPlatform):
    """A platform that allocates and computes nothing of the model; a subclass has the costs."""

    listener: "PassListener | None" = None  # of passes

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self.clock: VirtualClock = VirtualClock()

    @property
    @abstractmethod
    def costs(self) -> "Costs":
        """Seconds of passes and copies."""

    def run_engine(self, directory: Path) -> AbstractContextManager[Any]:
        """vLLM's engine, until the end of a `with` block; garbage is collected at its end."""
        from kvscope.engine.vllm.virtual.garbage import leave_uncollected

        leave_uncollected()
        return super().run_engine(directory)

    def engine_arguments(self) -> dict[str, Any]:
        """The executor in the place of a worker."""
        from kvscope.engine.vllm.virtual.executor import executor_class

        by_config = self.experiment.model.family == "hf"
        executor = executor_class(self.clock, self.costs, by_config, self.listener)
        return {"distributed_executor_backend": executor}

    def observe(self, scheduler: "PolicyScheduler", recorder: "CurrentRecording") -> None:
        """Spare the scheduler's time."""
        from kvscope.engine.vllm.virtual.allocation import skip_needless_checks

        if self.experiment.model.keeps_all:  # windows free blocks as they move on
            skip_needless_checks(scheduler)

    def host_pool(self) -> dict[str, Any]:
        """The configured host pool; nothing is allocated."""
        experiment = self.experiment
        if not experiment.host_blocks:
            return super().host_pool()
        return {
            "host_memory": getattr(experiment.overflow, "host_memory", None),
            "pieces_per_block": experiment.cache.pieces(experiment.model.layers_apart),
        }

    def after_pass(self) -> None:
        """vLLM's loop around its passes takes virtual time, too."""
        self.clock.wait(self.costs.between_passes_s)

    def shut_down(self, llm: Any) -> None:
        """Shut the engine down: without a worker there is no distributed state to clean up."""
        llm.llm_engine.engine_core.engine_core.scheduler.shutdown()
