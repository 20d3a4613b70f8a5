"""`modeled`: costs on a virtual clock instead of a worker."""

from typing import Any, ClassVar

from kvscope.engine.devices.modeled.clock import VirtualClock
from kvscope.engine.devices.platform import Platform
from kvscope.plan.experiment import Experiment
from kvscope.runschema import MODELED


class ModeledPlatform(Platform):
    """Nothing of the model is allocated or computed."""

    time_source: ClassVar[str] = MODELED
    awaited: ClassVar[bool] = False
    computes: ClassVar[bool] = False

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self.clock: VirtualClock = VirtualClock()
        self._between_passes_s = 0.0

    def engine_arguments(self) -> dict[str, Any]:
        """The executor in the place of a worker."""
        from kvscope.engine.devices.modeled.cost import Cost
        from kvscope.engine.devices.modeled.executor import executor_class

        cost = Cost(self.experiment)
        self._between_passes_s = cost.hardware.between_passes_s
        return {"distributed_executor_backend": executor_class(self.clock, cost)}

    def host_pool(self) -> dict[str, Any]:
        """As configured: nothing is allocated."""
        experiment = self.experiment
        if not experiment.host_blocks:
            return super().host_pool()
        return {
            "host_memory": getattr(experiment.overflow, "host_memory", None),
            "pieces_per_block": experiment.cache.pieces(experiment.model.layers),
        }

    def after_pass(self) -> None:
        """vLLM's loop around its passes takes time, too."""
        self.clock.wait(self._between_passes_s)

    def shut_down(self, llm: Any) -> None:
        """No worker means no distributed state, whose clean-up would look at every object."""
        llm.llm_engine.engine_core.engine_core.scheduler.shutdown()
