"""`adaptive`: of each victim the cheapest of recompute, swap and activation, by the cost model."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field, PrivateAttr

from kvscope.api.models import Model
from kvscope.api.policies import overflow
from kvscope.api.settings import Conditions, Label, fields, impossible
from kvscope.api.tables import actions
from kvscope_offload.overflow.saving import ACTIVATION, Saving
from kvscope_offload.overflow.victims import Foreseen, Outlook


class Pools(NamedTuple):
    """Bytes of a block in each host pool; 0 without it."""

    kv: int
    activations: int


class Adaptive(Saving):
    """Predict what each action costs for a victim, and return the cheapest that has room.

    The cost model is that of the modeled device: its own numbers there, elsewhere those of
    `hardware`, with `constants` in their place, as `kvscope calibrate` fits them. It has a host
    pool of K and V and one of activations, each of `host_blocks` blocks, or `host_gib` for as many
    of either. Activations larger than K and V are not kept, and scarce memory is for one pool.
    """

    in_id: ClassVar[tuple[str, ...]] = (*Saving.in_id, "hardware_sha256")

    hardware: Annotated[str | None, Label("hardware of the cost model", "by {}")] = None
    constants: Annotated[
        dict[str, fields.Real], Field(default_factory=dict), Label("constants of the cost model")
    ]

    _cost: overflow.costs.PreemptionCosts | None = PrivateAttr(default=None)
    _pools: Pools = PrivateAttr(default=Pools(0, 0))

    @property
    def hardware_sha256(self) -> str | None:
        """SHA-256 of the cost model's numbers of `hardware`."""
        return overflow.costs.cost_model().sha256(self.hardware) if self.hardware else None

    @classmethod
    def host_pools(
        cls,
        settings: Mapping[str, Any],
        block_bytes: overflow.HostPools,
        found: overflow.HostPools,
    ) -> overflow.HostPools | None:
        """Host pools with the run's number of blocks each; at least one pool."""
        has = overflow.HostPools(bool(found.kv) or not found.inputs, bool(found.inputs))
        together = sum(size for size, there in zip(block_bytes, has, strict=True) if there)
        blocks = overflow.blocks_of(settings, together)
        return overflow.HostPools(blocks * has.kv, blocks * has.inputs)

    def prepare(self, experiment: Conditions) -> None:
        """Make the cost model of the experiment."""
        self._cost, self._pools = self._costs_in(experiment), self.pools(experiment)

    @property
    def cost_hardware(self) -> tuple[str | None, Mapping[str, float]]:
        """The hardware and constants of its settings."""
        return self.hardware, self.constants

    def _costs_in(self, experiment: Conditions) -> overflow.costs.PreemptionCosts:
        """The costs of preemptions in an experiment, on that hardware."""
        return overflow.costs.cost_model().costs(experiment, *self.cost_hardware)

    def engine_arguments(self, host_blocks: int) -> dict[str, Any]:
        """Engine arguments with the run's number of blocks for each pool."""
        arguments = super().engine_arguments(host_blocks)
        settings = arguments["kv_transfer_config"]["kv_connector_extra_config"]
        blocks, activation_blocks = (host_blocks * bool(size) for size in self._pools)
        settings |= {"host_blocks": blocks, "activation_blocks": activation_blocks}
        return arguments

    def pool_block_bytes(self, experiment: Conditions) -> int:
        """Bytes of a block in the host pools."""
        return sum(self.pools(experiment))

    def pools(self, experiment: Conditions) -> Pools:
        """Bytes of a block in each pool of the run.

        Memory that has no room for the whole cache in both ways is for one: the one that spares
        more of recomputing a request of half the longest length, of which half is its prompt, by
        the part of it that the memory holds.
        """
        block_size, model = experiment.cache.block_size, Model.of(experiment)
        both = Pools(experiment.block_bytes, block_size * model.activation_bytes_per_token)
        if both.activations > both.kv:
            return both._replace(activations=0)
        memory_bytes = (self.host_gib or 0) * fields.GIB
        if self.host_blocks or memory_bytes >= experiment.cache_blocks * sum(both):
            return both
        cost, tokens = self._costs_in(experiment), max(1, experiment.engine.max_model_len // 2)
        recompute_s = cost.recompute_s(tokens, experiment.engine.max_num_seqs - 1)

        def worth(way_s: float, block_bytes: int) -> tuple[float, float]:
            """Seconds that a way spares of recomputing, then its negative cost."""
            share = memory_bytes / (-(-tokens // block_size) * block_bytes)
            return max(0.0, recompute_s - way_s) * min(1.0, share), -way_s

        kept_s = overflow.costs.rebuild_s(cost, tokens) + cost.write_through_s(
            -(-tokens // 2), tokens
        )
        if worth(kept_s, both.activations) > worth(overflow.costs.swap_s(cost, tokens), both.kv):
            return both._replace(kv=0)
        return both._replace(activations=0)

    def staging_bytes(self, experiment: Conditions) -> int:
        """Staging bytes of the ways that have pools."""
        pools = self.pools(experiment)
        swapped = super().staging_bytes(experiment) if pools.kv else 0
        return swapped + (self.noted_bytes(experiment) if pools.activations else 0)

    def check(self, experiment: Conditions) -> None:
        """Refuse a device without a cost model, and constants that no cost model has."""
        device = experiment.device
        has_numbers = device.has_costs and not self.hardware
        if (
            not has_numbers
            and (self.hardware or device.name) not in overflow.costs.known_hardware()
        ):
            raise impossible(
                f"overflow.hardware ({self.hardware or 'null'}) must be one of "
                f"{overflow.costs.hardware_words()} with device={device.name}: overflow=adaptive "
                "predicts costs by its numbers",
                "overflow.hardware",
            )
        if has_numbers and self.constants:
            raise impossible(
                f"overflow.constants ({self.constants}) has no meaning with device={device.name} "
                "and overflow.hardware=null: the cost model has the device's numbers, which "
                "device.constants replace",
                "overflow.constants",
                "overflow.hardware",
            )
        super().check(experiment)

    def saves(self, outlook: Outlook) -> bool:
        """True if rebuilding at each preemption to come spares more than writing through costs."""
        assert self._cost is not None, "prepare() was not called"
        spared_s = 0.0
        for victim in outlook.victims:
            seconds = self.expected_s(victim)
            rebuilt_s = seconds.pop(ACTIVATION, inf)
            spared_s += max(0.0, min(seconds.values()) - rebuilt_s)
        return spared_s > self._cost.write_through_s(*outlook.growth)

    def seconds(self, victim: Foreseen) -> dict[actions.Action, float]:
        """The predicted seconds of each action that is possible for a victim."""
        cost, tokens = self._cost, victim.tokens
        assert cost is not None, "prepare() was not called"
        seconds = {actions.RECOMPUTE: cost.recompute_s(tokens, victim.beside, victim.together)}
        if victim.room:
            seconds[actions.SWAP] = overflow.costs.swap_s(cost, tokens)
        if victim.activations:
            seconds[ACTIVATION] = overflow.costs.rebuild_s(cost, tokens)
        return seconds

    def expected_s(self, victim: Foreseen) -> dict[actions.Action, float]:
        """Expected seconds per action, with repeated recomputation until the victim goes on."""
        seconds = self.seconds(victim)
        seconds[actions.RECOMPUTE] *= 1 + victim.again
        return seconds

    def predictions_s(self, experiment: Conditions, tokens: int, beside: int) -> dict[str, float]:
        """Seconds of each possible action."""
        self.prepare(experiment)
        others = {"beside": beside, "together": beside + 1}  # one of them counts, by the batching
        seconds = self.seconds(with_room(tokens, **others))
        return {action.name: predicted_s for action, predicted_s in seconds.items()}

    def action_alone(self, experiment: Conditions) -> Callable[[int], str]:
        """A function: the name of the action for a victim of so many tokens that runs alone."""
        self.prepare(experiment)
        return lambda tokens: self.action(with_room(tokens)).name

    def action(self, victim: overflow.Victim) -> actions.Action:
        """The action of the fewest expected seconds."""
        assert isinstance(victim, Foreseen), "its connector makes another victim"
        seconds = self.expected_s(victim)
        return min(seconds, key=seconds.__getitem__)

    def predicted_s(self, victim: overflow.Victim, action: actions.Action) -> float | None:
        """The seconds of the action, once."""
        assert isinstance(victim, Foreseen), "its connector makes another victim"
        return self.seconds(victim)[action]


def with_room(tokens: int, **more: int) -> Foreseen:
    """A victim of so many tokens, for which the host has room whatever is done with it."""
    return Foreseen("", 0, 0, tokens, 0, room=True, activations=True, **more)
