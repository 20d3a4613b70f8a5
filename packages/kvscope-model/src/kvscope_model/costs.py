"""The cost model of overflow policies (`kvscope.cost`): that of the modeled device."""

from collections.abc import Mapping

from kvscope.api.models import costs as models
from kvscope.api.settings import Conditions
from kvscope_model.device import Modeled
from kvscope_model.hardware import files
from kvscope_model.hardware import hardware as data
from kvscope_model.hardware.hardware import Hardware
from kvscope_model.hardware.overflow_cost import OverflowCost


def costs(
    experiment: Conditions, hardware: str | None, constants: Mapping[str, float]
) -> OverflowCost:
    """The costs by the data file of some hardware, or by the numbers of a modeled device.

    On a device that is not modeled they are those of vLLM's kernels of today.
    """
    device = experiment.device
    today = Modeled.model_validate({"name": "modeled", "kernels": "vllm"})
    modeled = device if isinstance(device, Modeled) else today
    return modeled.cost(_numbers(experiment, hardware, constants), experiment)


def _numbers(
    experiment: Conditions, hardware: str | None, constants: Mapping[str, float]
) -> Hardware:
    """The numbers of some hardware, or those of the experiment's device."""
    device = experiment.device
    if isinstance(device, Modeled) and not hardware:
        return device.numbers
    hardware_model = data.read(hardware or device.name)
    return Hardware.model_validate({**hardware_model.model_dump(), **constants})


COSTS = models.CostModel(files.names, data.sha256, costs)
