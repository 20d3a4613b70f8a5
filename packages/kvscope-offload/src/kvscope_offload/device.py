"""`offload`: the throughput-oriented engine, whose weights and context lie behind a link."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from kvscope.api.devices import Device, Kernels, Speed
from kvscope.api.models import Model
from kvscope.api.settings import Conditions, Label, fields, impossible
from kvscope.api.tables import evidence as known
from kvscope_model.device import ModeledHardware
from kvscope_offload.cost import Sizes
from kvscope_offload.policies import POLICIES
from kvscope_offload.policy import OffloadPolicy

# Keys of the device that are keys of its policy, too.
POLICY_KEYS = (
    *("weights", "minibatches", "device_gib"),
    *("share", "spread_weights", "balanced", "buffers"),
)


class OffloadDevice(Device):
    """A device with a memory of its own, and kvscope's offload engine on it in place of vLLM.

    `cache.blocks` bounds what the requests of a batch keep together, of which `device_gib` are on
    the device. The keys after `policy` are the policy's; null is the policy's default.
    """

    platform: ClassVar[str] = "kvscope_offload.platform:OffloadPlatform"
    attentions: ClassVar[dict[str, Kernels]] = {"torch": Kernels()}
    in_id: ClassVar[tuple[str, ...]] = ("threads", "policy")
    times_layers: ClassVar[bool] = False
    caches_prefixes: ClassVar[bool] = False
    evidence: ClassVar[frozenset[str]] = known.ALL - {known.KV_GROUPS}
    torch_device: ClassVar[str]

    policy: Annotated[str, Label("offload policy", "{}")] = "hybrid"
    weights: Annotated[Literal["streamed", "resident"] | None, Label("weights")] = None
    minibatches: Annotated[fields.Count | None, Label("mini-batches")] = None
    device_gib: Annotated[fields.Gib | None, Label("cache on the device (GiB)")] = None
    share: Annotated[
        Annotated[fields.Real, Field(ge=0, le=1)] | None, Label("share of the context")
    ] = None
    spread_weights: Annotated[bool | None, Label("weights spread over mini-batches")] = None
    balanced: Annotated[bool | None, Label("balanced mini-batches")] = None
    buffers: Annotated[fields.Count | None, Label("staging buffers")] = None

    @property
    def slug(self) -> str:
        """Slug with the policy, and the share if it is given."""
        share = "" if self.share is None else f"-{self.share:g}"
        return f"-{self.policy.replace('_', '-')}{share}"

    @property
    def link_bytes_per_s(self) -> float | None:
        """Limit of the link's speed; None without a limit."""
        return None

    @property
    def policy_keys(self) -> dict[str, Any]:
        """The keys of the policy that are set."""
        given = {key: getattr(self, key) for key in POLICY_KEYS}
        return {key: value for key, value in given.items() if value is not None}

    def offload_policy(self, host_bytes: float) -> OffloadPolicy:
        """The policy with its settings, and so much host memory for the context."""
        keys = self.policy_keys | {"name": self.policy, "host_gib": host_bytes / fields.GIB}
        return POLICIES[self.policy].model_validate(keys)

    def memory_bytes(self, experiment: Conditions) -> int:
        """The context, and the weights once."""
        return experiment.cache_blocks * experiment.block_bytes + experiment.model.weight_bytes

    def check(self, experiment: Conditions) -> None:
        """Refuse keys that the policy does not have, and what the engine cannot do."""
        if self.policy not in POLICIES:
            raise impossible(
                f"device.policy ({self.policy}) must be one of {', '.join(POLICIES)}",
                "device.policy",
            )
        allowed = POLICIES[self.policy].model_fields
        for key in self.policy_keys:
            if key not in allowed:
                raise impossible(
                    f"device.{key} must be null with device.policy={self.policy}, which has no "
                    "such setting",
                    f"device.{key}",
                    "device.policy",
                )
        super().check(experiment)  # of the policy's memory, too


class OffloadCpu(OffloadDevice):
    """The CPU: the device's memory is main memory, the link to it a copy at a bounded rate."""

    speed: ClassVar[Speed] = Speed(10, 2e8, 0, 0.01, 1e-4, 1e10, 1e8)
    torch_device: ClassVar[str] = "cpu"

    link_gb_per_s: Annotated[
        Annotated[fields.Real, Field(gt=0)] | None, Label("link (GB/s)", "link {} GB/s")
    ] = None

    @property
    def link_bytes_per_s(self) -> float | None:
        """Bytes a second that the link between device and host is bound to."""
        return self.link_gb_per_s and self.link_gb_per_s * 1e9


class OffloadCuda(OffloadDevice):
    """One NVIDIA GPU and its link to the host."""

    speed: ClassVar[Speed] = Speed(60, 1e9, 0, 0.02, 1e-4, 1e14, 1e10)
    gpus: ClassVar[int] = 1
    torch_device: ClassVar[str] = "cuda"

    def memory_bytes(self, experiment: Conditions) -> int:
        """Bytes of memory, without weights that are drawn on the GPU and stay there."""
        policy = self.offload_policy(experiment.cache_blocks * experiment.block_bytes)
        resident = 0 if policy.streamed else experiment.model.weight_bytes
        return super().memory_bytes(experiment) - resident


class OffloadModeled(OffloadDevice, ModeledHardware):
    """A GPU by its data file: the engine's schedule on a virtual clock."""

    platform: ClassVar[str] = "kvscope_offload.platform:ModeledOffloadPlatform"
    speed: ClassVar[Speed] = Speed(2, 1e18, 0, 3e-2, 0, 1e18, 1e18)
    allocates: ClassVar[bool] = False
    in_id: ClassVar[tuple[str, ...]] = ("policy", "hardware", "hardware_sha256")

    hardware: Annotated[str, Label("hardware", "{}")] = "rtx-4090"

    @property
    def slug(self) -> str:
        """Slug with the hardware and the policy."""
        return f"-{self.hardware}{super().slug}"

    def passes_s(self, experiment: Conditions, lengths: Sequence[tuple[int, int]]) -> list[float]:
        """Seconds of the passes as the engine simulates them."""
        from kvscope_offload.modeled_engine import modeled_passes_s

        return modeled_passes_s(experiment, self, lengths)

    def engine_facts(
        self, experiment: Conditions, lengths: Sequence[tuple[int, int]]
    ) -> dict[str, Any]:
        """Prediction of the cost model for the first batch."""
        from kvscope_offload.modeled_engine import modeled_prediction

        return {"offload": modeled_prediction(experiment, self, lengths)}

    def needed_bytes(self, experiment: Conditions) -> float:
        """Weights, the device's part of the context, and staging buffers."""
        model = Model.of(experiment)
        layer = Sizes.of(model).weight_bytes
        policy = self.offload_policy(experiment.cache_blocks * experiment.block_bytes)
        weights = model.weight_bytes - (max(0, model.layers - 2) * layer if policy.streamed else 0)
        return weights + policy.device_bytes + self._staging_bytes(policy, experiment)

    def _staging_bytes(self, policy: OffloadPolicy, experiment: Conditions) -> float:
        """Staging bytes of the longest requests, as many as a mini-batch may have."""
        model, longest = Model.of(experiment), experiment.engine.max_model_len
        sizes = Sizes.of(model)
        requests = experiment.engine.max_num_seqs
        if not policy.host_cache:
            request_bytes = longest * sizes.kv_bytes * model.layers
            requests = int(policy.device_bytes // request_bytes)
        count = -(-requests // policy.minibatches)
        return policy.schedule.buffers * count * longest * (sizes.kv_bytes + sizes.activation_bytes)
