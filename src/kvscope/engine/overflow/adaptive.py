"""`adaptive`: of each victim the cheapest of recompute, swap and activation, by the cost model."""

from typing import Annotated, Any, ClassVar

from pydantic import Field, PrivateAttr

from kvscope.actions import ACTIVATION, RECOMPUTE, SWAP, Action
from kvscope.engine.overflow.policy import Victim
from kvscope.engine.overflow.swap import Swap
from kvscope.plan.devices.modeled import Modeled
from kvscope.plan.fields import Label, Real, impossible
from kvscope.plan.hardware import hardware as data
from kvscope.plan.hardware.hardware import Hardware
from kvscope.plan.hardware.overflow_cost import OverflowCost
from kvscope.plan.parts import Conditions


class Adaptive(Swap):
    """Predict what each action costs for a victim, and return the cheapest that has room.

    The cost model is that of the modeled device: its own numbers there, elsewhere those of
    `hardware`, with `constants` in their place, as `kvscope calibrate` fits them. The host pool is
    two: one of K and V, and one of activations unless these are larger than K and V. `host_blocks`
    is the size of each; `host_gib` is shared by both, for as many blocks of either.
    """

    connector: ClassVar[str] = "kvscope.engine.overflow.activation_connector:ActivationConnector"
    in_id: ClassVar[tuple[str, ...]] = (*Swap.in_id, "hardware_sha256")

    hardware: Annotated[str | None, Label("hardware of the cost model", "by {}")] = None
    constants: Annotated[
        dict[str, Real], Field(default_factory=dict), Label("constants of the cost model")
    ]

    _cost: OverflowCost | None = PrivateAttr(default=None)
    _uses_activations: bool = PrivateAttr(default=False)

    @property
    def hardware_sha256(self) -> str | None:
        """SHA-256 of the data file of `hardware`."""
        return data.sha256(self.hardware) if self.hardware else None

    def prepare(self, experiment: Conditions) -> None:
        """Make the cost model of the experiment."""
        device = experiment.device
        today = Modeled.model_validate({"name": "modeled", "kernels": "vllm"})
        modeled = device if isinstance(device, Modeled) else today
        numbers, batching = self.numbers(experiment), experiment.batching.name
        passes = modeled.pass_cost(numbers, experiment.model, batching)
        self._cost = OverflowCost.of(experiment, passes)
        self._uses_activations = uses_activations(experiment)

    def numbers(self, experiment: Conditions) -> Hardware:
        """The numbers of the hardware that the cost model is of."""
        device = experiment.device
        if isinstance(device, Modeled) and not self.hardware:
            return device.numbers
        found = data.read(self.hardware or device.name)
        return Hardware.model_validate(found.model_dump() | self.constants)

    def engine_arguments(self, host_blocks: int) -> dict[str, Any]:
        """A pool for K and V, and one of as many blocks for activations."""
        arguments = super().engine_arguments(host_blocks)
        settings = arguments["kv_transfer_config"]["kv_connector_extra_config"]
        settings["activation_blocks"] = host_blocks if self._uses_activations else 0
        return arguments

    def pool_block_bytes(self, experiment: Conditions) -> int:
        """Bytes of a block in the host pools."""
        block_bytes = super().pool_block_bytes(experiment)
        if not uses_activations(experiment):
            return block_bytes
        return (
            block_bytes + experiment.cache.block_size * experiment.model.activation_bytes_per_token
        )

    def check(self, experiment: Conditions) -> None:
        """Refuse a device without a cost model."""
        super().check(experiment)
        device, known = experiment.device, data.names()
        has_numbers = isinstance(device, Modeled) and not self.hardware
        if not has_numbers and (self.hardware or device.name) not in known:
            raise impossible(
                f"overflow.hardware ({self.hardware or 'null'}) must be one of {', '.join(known)} "
                f"with device={device.name}: overflow=adaptive predicts costs by its numbers",
                "overflow.hardware",
            )

    def seconds(self, victim: Victim) -> dict[Action, float]:
        """The predicted seconds of each action that is possible for a victim."""
        cost, tokens = self._cost, victim.tokens
        assert cost is not None, "prepare() was not called"
        found = {RECOMPUTE: cost.recompute_s(tokens)}
        blocks = -(-tokens // cost.block_size)
        if victim.room:
            found[SWAP] = sum(cost.swap_s(blocks, 1, way)[0] for way in ("out", "in"))
        if victim.activations:
            found[ACTIVATION] = cost.fetch_s(blocks, 1)[0] + cost.rebuild_s(tokens)
        return found

    def action(self, victim: Victim) -> Action:
        """The action of the fewest predicted seconds."""
        seconds = self.seconds(victim)
        return min(seconds, key=seconds.__getitem__)

    def predicted_s(self, victim: Victim, action: Action) -> float | None:
        """The prediction that the action was chosen by."""
        return self.seconds(victim)[action]


def uses_activations(experiment: Conditions) -> bool:
    """Whether activations of the experiment's model are no larger than its K and V."""
    model = experiment.model
    return model.activation_bytes_per_token <= model.kv_bytes_per_token
