"""`dry`: vLLM's scheduler alone; a pass takes a constant time on a virtual clock."""

from typing import Annotated, ClassVar

from pydantic import Field

from kvscope.base.time_sources import MODELED
from kvscope.plan.device import Device, Kernels, Speed
from kvscope.plan.fields import Label, impossible
from kvscope.plan.parts import Conditions

Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]


class Dry(Device):
    """Nothing is computed: a pass takes `pass_s`, a copy or load of a block `copy_s`.

    Counts (passes, preemptions, blocks, tokens) are vLLM's own; no time says how fast anything is.
    """

    platform: ClassVar[str] = "kvscope.engine.devices.dry:DryPlatform"
    attentions: ClassVar[dict[str, Kernels]] = {"vllm": Kernels(layouts=None)}
    # Passes cost the scheduler's own time.
    speed: ClassVar[Speed] = Speed(20, 1e15, 0, 3e-4, 0, 1e18, 1e18)
    time_source: ClassVar[str] = MODELED
    allocates: ClassVar[bool] = False
    forces_outputs: ClassVar[bool] = True
    caveat: ClassVar[str] = (
        "On device=dry every pass takes the same time: what was counted holds, and times, with all "
        "that follows from them, say nothing of a machine."
    )
    in_id: ClassVar[tuple[str, ...]] = ("pass_s", "copy_s")

    pass_s: Annotated[Seconds, Label("seconds of a pass", "{} s a pass")] = 0.01
    copy_s: Annotated[Seconds, Label("seconds to copy a block", "{} s a block")] = 0.001

    def check(self, experiment: Conditions) -> None:
        """Refuse the tracing of KV events, which no kernel makes."""
        if experiment.tracing.name != "none":
            raise impossible(
                f"tracing ({experiment.tracing.name}) must be none on device {self.name}, which "
                "runs no attention kernels that could record KV events",
                "tracing",
                "device",
            )
        super().check(experiment)
