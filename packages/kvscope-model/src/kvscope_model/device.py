"""`modeled`: vLLM's scheduler on a virtual clock; nothing of the model is computed or allocated."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationError

from kvscope.api.devices import Device, Kernels, Speed, decisions
from kvscope.api.errors import BadInput
from kvscope.api.files import reading
from kvscope.api.models import Model
from kvscope.api.settings import Conditions, Label, fields, impossible
from kvscope.api.words import time_sources
from kvscope_model.capacity.gpus import Gpu, gpus
from kvscope_model.hardware import hardware as data
from kvscope_model.hardware.cost import PassCost
from kvscope_model.hardware.family_cost import FamilyCost
from kvscope_model.hardware.hardware import Hardware
from kvscope_model.hardware.overflow_cost import OverflowCost

ONLY_STATED = {
    "link_bytes_per_s": "pinned_out_bytes_per_s and pinned_in_bytes_per_s",
    "peak_flops_per_s": "gemm_flops_per_s",
}
"""Numbers of vendors that stand in no formula, and those that say what is reached of them."""


class ModeledHardware(Device):
    """A GPU by its data file (`kvscope_model.hardware`); `constants` replace numbers of it."""

    # Passes cost the scheduler's own time.
    speed: ClassVar[Speed] = Speed(20, 1e15, 0, 3e-4, 0, 1e18, 1e18)
    time_source: ClassVar[str] = time_sources.MODELED
    allocates: ClassVar[bool] = False
    in_id: ClassVar[tuple[str, ...]] = ("hardware", "hardware_sha256")

    hardware: Annotated[str, Label("hardware", "{}")] = "a100-40gb"
    constants: Annotated[
        dict[str, fields.Real], Field(default_factory=dict), Label("constants of the hardware")
    ]

    @property
    def hardware_sha256(self) -> str:
        """SHA-256 of the data file: a number changed in it makes another experiment."""
        return data.sha256(self.hardware)

    @property
    def numbers(self) -> Hardware:
        """The hardware's numbers, with the constants in their place."""
        hardware_model = data.read(self.hardware)
        return Hardware.model_validate(hardware_model.model_dump() | self.constants)

    def needed_bytes(self, experiment: Conditions) -> float:
        """Bytes that the experiment needs of the GPU's memory: weights and cache."""
        return experiment.model.weight_bytes + experiment.cache_blocks * experiment.block_bytes

    def check(self, experiment: Conditions) -> None:
        """Refuse hardware without a data file, constants that it does not have, a model too big."""
        super().check(experiment)
        try:
            numbers = self.numbers
        except BadInput as error:
            raise impossible(str(error), "device.hardware") from None
        except ValidationError as error:
            key, message = reading.first_fault(error)
            sentence = f"device.constants.{key}: {message.lower()}"
            raise impossible(sentence, "device.constants") from None
        for name in self.constants.keys() & ONLY_STATED.keys():
            raise impossible(
                f"device.constants.{name} is what the vendor states, and no time follows from it; "
                f"set {ONLY_STATED[name]}, which is what is reached",
                "device.constants",
            )
        needed = self.needed_bytes(experiment)
        if needed > numbers.memory_bytes:
            raise impossible(
                f"weights and cache ({needed / 1e9:,.1f} GB) must fit into the "
                f"{numbers.memory_bytes / 1e9:,.1f} GB of device.hardware={self.hardware}",
                "cache.blocks",
                "device.hardware",
            )


class Modeled(ModeledHardware):
    """vLLM on modeled hardware.

    `kernels` says whose attention passes are modeled: of vLLM 0.4.2, which the paper ran with, or
    of vLLM today. `bootstrap` has constants as fits to bootstrap samples give them, for intervals
    of metrics.
    """

    platform: ClassVar[str] = "kvscope_model.engine.platform:ModeledPlatform"
    copies_awaited: ClassVar[bool] = False
    forces_outputs: ClassVar[bool] = True
    has_costs: ClassVar[bool] = True
    intervals: ClassVar[str] = "kvscope_model.calibration.intervals:modeled_intervals"
    # `instrumented` has the same cost, and its accesses to the cache can be traced.
    attentions: ClassVar[dict[str, Kernels]] = {
        "vllm": Kernels(layouts=None),
        "instrumented": Kernels(layouts=None),
    }

    kernels: Annotated[
        Literal["vllm-0.4.2", "vllm"], Label("attention kernels", "kernels of {}")
    ] = "vllm-0.4.2"
    bootstrap: Annotated[
        list[dict[str, fields.Real]],
        Field(default_factory=list),
        Label("fits to bootstrap samples"),
    ]

    @property
    def gpu(self) -> Gpu | None:
        """The GPU that vLLM of today plans for; None with vLLM 0.4.2, and of a CPU."""
        return gpus().get(self.hardware) if self.kernels == "vllm" else None

    @classmethod
    def decide(cls, drafts: Sequence[decisions.Draft]) -> Sequence[decisions.Decisions]:
        """vLLM's default limits on the GPU, and the size of blocks that hold a state."""
        from kvscope_model.capacity.on_gpu import OnGpu, decide

        on_gpu = {}
        for number, draft in enumerate(drafts):
            device, model = draft.device, draft.model
            assert isinstance(device, cls)
            assert isinstance(model, Model)
            if device.gpu:
                on_gpu[number] = OnGpu(draft, model, device.hardware, device.gpu)
        decided = dict(zip(on_gpu, decide([*on_gpu.values()]), strict=True))
        return [decided.get(number, {}) for number in range(len(drafts))]

    @property
    def fits(self) -> list[Hardware]:
        """The hardware by each fit to a bootstrap sample; none where its numbers were not fitted.

        A number that `constants` give is not one that the hardware's own samples vary.
        """
        usual = self.numbers.model_dump()
        fitted_samples = [
            {name: value for name, value in sample.items() if name not in self.constants}
            for sample in data.read(self.hardware).bootstrap
        ]
        samples = self.bootstrap or fitted_samples
        return [Hardware.model_validate(usual | sample) for sample in samples if sample]

    def cost(self, hardware: Hardware, experiment: Conditions) -> OverflowCost:
        """Costs of an experiment's passes and copies on some hardware, by the modeled kernels."""
        today, model, width = self.kernels == "vllm", Model.of(experiment), experiment.kv_width
        prefix_kernel = experiment.batching.name == "chunked" and not today
        kind = FamilyCost if model.family == "hf" else PassCost
        return OverflowCost.of(experiment, kind(hardware, model, prefix_kernel, today, width))

    def check(self, experiment: Conditions) -> None:
        """Refuse samples that are not numbers of the hardware, and kernels that have no family."""
        super().check(experiment)
        model, cache = experiment.model, experiment.cache
        if self.kernels != "vllm" and (model.family == "hf" or cache.dtype != "auto"):
            raise impossible(
                f"device.kernels ({self.kernels}) must be vllm with model={model.name} and "
                f"cache.dtype={cache.dtype}, which vLLM 0.4.2 has no modeled kernels for",
                "device.kernels",
            )
        try:
            self.fits  # noqa: B018
        except ValidationError as error:
            key, message = reading.first_fault(error)
            sentence = f"device.bootstrap has {key}: {message.lower()}"
            raise impossible(sentence, "device.bootstrap") from None

    @property
    def slug(self) -> str:
        """Its part of an experiment's slug: the device and its hardware."""
        return f"-{self.name}-{self.hardware}"
