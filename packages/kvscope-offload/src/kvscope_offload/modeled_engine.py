"""The engine on a virtual clock: the schedule with a GPU's costs, nothing of the model computed."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol

from kvscope.api.devices import Device
from kvscope.api.engines import VirtualClock
from kvscope.api.models import Model
from kvscope.api.settings import Conditions
from kvscope_model.hardware.hardware import Hardware
from kvscope_offload.cost import CostModel
from kvscope_offload.engine import Engine, Prompt
from kvscope_offload.generation import Generation, Length, Limits, rounds
from kvscope_offload.pipeline import Pass
from kvscope_offload.policy import OffloadPolicy
from kvscope_offload.prediction import Prediction
from kvscope_offload.simulation import Simulated, simulate

RECORDED_PASSES = 4  # the first ones, whose lanes a page shows


class ModeledGpu(Protocol):
    """Attributes of a device that models a GPU (`device.OffloadModeled`)."""

    @property
    def numbers(self) -> Hardware:
        """The numbers of the GPU and its host."""

    def offload_policy(self, host_bytes: float) -> OffloadPolicy:
        """The policy, with so much host memory for the context."""


class ModeledEngine(Engine):
    """Lets the seconds of simulated passes go by; a batch of known lengths is simulated once."""

    def __init__(
        self,
        model: Model,
        policy: OffloadPolicy,
        cost: CostModel,
        block_size: int,
        clock: VirtualClock,
    ) -> None:
        super().__init__(model, policy, cost, block_size)
        self.clock = clock
        self._known: dict[tuple[Length, ...], Simulated] = {}

    def compute(
        self, generation: Generation, prompts: list[Prompt]
    ) -> Iterator[tuple[Pass, list[int]]]:
        """The passes of one batch, each as long as simulated."""
        simulated = self.simulated(generation.lengths)
        begin_s = 0.0
        for step, end_s in zip(simulated.passes, simulated.ends_s, strict=True):
            self.clock.wait(end_s - begin_s)
            begin_s = end_s
            yield step, [Device.TOKEN] * len(step.rows)

    def simulated(self, lengths: list[Length]) -> Simulated:
        """A batch of these lengths."""
        key = tuple(lengths)
        if key not in self._known:
            self._known[key] = simulate(self.lay_out(lengths), RECORDED_PASSES)
        return self._known[key]

    def close(self) -> None:
        """Nothing to end: no thread was started."""


def modeled_engine(
    experiment: Conditions, device: ModeledGpu, clock: VirtualClock
) -> ModeledEngine:
    """The engine of an experiment on a clock."""
    model = Model.of(experiment)
    return ModeledEngine(
        model,
        device.offload_policy(experiment.cache_blocks * experiment.block_bytes),
        CostModel.of_hardware(model, device.numbers),
        experiment.cache.block_size,
        clock,
    )


def modeled_passes_s(
    experiment: Conditions, device: ModeledGpu, lengths: Sequence[tuple[int, int]]
) -> list[float]:
    """Seconds of the passes that serve requests of these prompt and output tokens."""
    clock = VirtualClock()
    engine, seconds = modeled_engine(experiment, device, clock), [0.0]
    prompts, outputs = [range(prompt) for prompt, _ in lengths], [output for _, output in lengths]
    for _ in engine.stream(prompts, outputs, Limits.of(experiment)):
        seconds.append(clock.now_ns() * 1e-9)
    return [end - begin for begin, end in pairwise(seconds)]


def modeled_prediction(
    experiment: Conditions, device: ModeledGpu, lengths: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """Entry of run.json for the first batch of requests of these prompt and output tokens."""
    engine, each = modeled_engine(experiment, device, VirtualClock()), [Length(*n) for n in lengths]
    sizes, layers, size = engine.cost.sizes, engine.model.layers, engine.block_size
    limits = Limits.of(experiment)
    for numbers in rounds(engine.policy, sizes, layers, size, each, limits):
        return Prediction(engine, engine.lay_out([each[i] for i in numbers])).facts
    return {}
