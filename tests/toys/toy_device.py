"""A device on plan's floor: the CPU under another name, with limits of its own."""

from typing import Annotated, ClassVar

from kvscope.api.devices import Kernels
from kvscope.api.settings import Label, fields
from kvscope.plan.devices.cpu import Cpu


class Toy(Cpu):
    """vLLM on the CPU, by a clock that is modeled."""

    platform: ClassVar[str] = "toy_platform:ToyPlatform"
    time_source: ClassVar[str] = "modeled"
    attentions: ClassVar[dict[str, Kernels]] = {"vllm": Kernels(32, layouts=("by_layer",))}

    reading_ns: Annotated[fields.Count, Label("a reading of the clock (ns)")] = 1000

    @property
    def slug(self) -> str:
        return "-toy"
