"""A device on plan's floor: the CPU under another name, with limits of its own."""

from typing import Annotated, ClassVar

from kvscope.plan.device import Kernels
from kvscope.plan.devices.cpu import Cpu
from kvscope.plan.fields import Count, Label


class Toy(Cpu):
    """vLLM on the CPU, by a clock that is modeled."""

    platform: ClassVar[str] = "toy_platform:ToyPlatform"
    time_source: ClassVar[str] = "modeled"
    attentions: ClassVar[dict[str, Kernels]] = {"vllm": Kernels(32, layouts=("by_layer",))}

    reading_ns: Annotated[Count, Label("a reading of the clock (ns)")] = 1000

    @property
    def slug(self) -> str:
        return "-toy"
