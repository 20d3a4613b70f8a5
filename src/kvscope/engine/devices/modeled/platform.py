"""`modeled`: costs on a virtual clock instead of a worker."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.engine.devices.modeled.clock import VirtualClock
from kvscope.engine.devices.platform import Platform
from kvscope.plan.experiment import Experiment

if TYPE_CHECKING:
    from kvscope.engine.devices.modeled.cost import Cost
    from kvscope.engine.devices.modeled.tracer import ModeledTracer
    from kvscope.engine.run_recorder import RunRecorder
    from kvscope.engine.scheduler import PolicyScheduler


class ModeledPlatform(Platform):
    """Nothing of the model is allocated or computed."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self.clock: VirtualClock = VirtualClock()
        self._tracer: ModeledTracer | None = None

    @cached_property
    def cost(self) -> "Cost":
        """What passes and copies cost."""
        from kvscope.engine.devices.modeled.cost import Cost

        return Cost(self.experiment)

    def engine_arguments(self) -> dict[str, Any]:
        """The executor in the place of a worker."""
        from kvscope.engine.devices.modeled.executor import executor_class

        executor = executor_class(self.clock, self.cost, self._tracer)
        return {"distributed_executor_backend": executor}

    def tracer(self, directory: Path) -> "ModeledTracer":
        """Events are made when they are read: nothing is stored meanwhile."""
        from kvscope.engine.devices.modeled.tracer import ModeledTracer

        self._tracer = ModeledTracer(self.experiment, self.clock, self.cost)
        return self._tracer

    def observe(self, scheduler: "PolicyScheduler", recorder: "RunRecorder") -> None:
        """Spare its time; layers have times of their own where they are traced."""
        from kvscope.engine.devices.modeled.allocation import skip_needless_checks

        if self.experiment.model.keeps_all:  # windows free blocks as they move on
            skip_needless_checks(scheduler)
        if self._tracer is not None:
            self._tracer.layer_times = lambda: recorder.recording.layers

    def host_pool(self) -> dict[str, Any]:
        """As configured: nothing is allocated."""
        experiment = self.experiment
        if not experiment.host_blocks:
            return super().host_pool()
        return {
            "host_memory": getattr(experiment.overflow, "host_memory", None),
            "pieces_per_block": experiment.cache.pieces(experiment.model.layers_apart),
        }

    def after_pass(self) -> None:
        """vLLM's loop around its passes takes time, too."""
        self.clock.wait(self.cost.hardware.between_passes_s)

    def shut_down(self, llm: Any) -> None:
        """No worker means no distributed state, whose clean-up would look at every object."""
        llm.llm_engine.engine_core.engine_core.scheduler.shutdown()
