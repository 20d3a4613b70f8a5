"""The device on engine's floor: each reading of its clock takes as long as the experiment says."""

from kvscope.api.experiments import Experiment
from kvscope.engine.devices.cpu import CpuPlatform


class Steps:
    """A clock that moves by a step at each reading, and by each wait."""

    def __init__(self, step_ns: int) -> None:
        self.step_ns, self.time_ns = step_ns, 0

    def now_ns(self) -> int:
        self.time_ns += self.step_ns
        return self.time_ns

    def wait(self, seconds: float) -> None:
        self.time_ns += -(-round(seconds * 1e9) // self.step_ns) * self.step_ns


class ToyPlatform(CpuPlatform):
    """Takes no time but by its clock."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self.clock = Steps(experiment.device.model_dump()["reading_ns"])

    def environment(self) -> dict[str, str]:
        return super().environment() | {"TOY": "1"}
