"""The planner's view of batching and overflow policies."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from kvscope.plan.fields import Label
from kvscope.plan.option import Option
from kvscope.plan.parts import Conditions
from kvscope.tables.kv_group import KvGroup


class Batching(Option):
    """A batching policy: selects the requests and tokens of each forward pass.

    `kvscope check` holds a run against two declarations. `cuts_prompts` says where a prompt is cut:
    `never`, `when_full` (where the rest exceeds what the pass may compute) or `freely`. With
    `mixes_phases` false, no pass does both prefill and decode.
    """

    cuts_prompts: ClassVar[Literal["never", "when_full", "freely"]] = "when_full"
    mixes_phases: ClassVar[bool] = True

    @property
    def pass_tokens(self) -> int | None:
        """The token budget of a pass; None if only the engine's limit applies."""
        return None


class HostPools(NamedTuple):
    """Blocks, or bytes of a block, of the host pools for K and V and for inputs of attention."""

    kv: int = 0
    inputs: int = 0


LAST: Final = "last"
RANDOM: Final = "random"
CHEAPEST: Final = "cheapest"
Whom = Literal[
    "last",
    "first",
    "longest",
    "shortest",
    "least_computed",
    "most_computed",
    "random",
    "cheapest",
]


def drawn(seed: int, request_id: str, tokens: int) -> float:
    """The rank that `victim=random` gives a request with so many tokens in the cache, in [0, 1).

    It is a hash: every repeat and every device draws the same.
    """
    digest = blake2b(f"{seed} {request_id} {tokens}".encode(), digest_size=6).digest()
    return int.from_bytes(digest) / (1 << 48)


class Overflow(Option):
    """An overflow policy: decides whom to preempt, and what is done with its blocks.

    `victim` is, of the running requests, the one that is preempted: the last that was admitted, as
    vLLM chooses; the first that arrived; the longest or the shortest; the one with the fewest or
    the most tokens in the cache; one at random; or the one whose preemption costs least by the cost
    model.
    """

    only_action: ClassVar[str | None] = None
    """The name of its only action; None if it has several. It is not inherited."""
    resumes_at_once: ClassVar[bool] = False
    """Whether victims resume in the pass that admits them, instead of waiting for copies."""
    stages_passes: ClassVar[bool] = False
    """Whether its copies hold what a pass computes, of up to `engine.max_num_batched_tokens`."""

    orders_jobs: ClassVar[bool] = False
    """Whether its connector orders jobs, copies beside the passes: its runs have their table."""
    stores_outputs: ClassVar[bool] = True
    """Whether its jobs also store blocks of outputs, and not only of prompts."""

    victim: Annotated[Whom, Label("victim", "victim {}")] = LAST

    @classmethod
    def ranks_itself(cls) -> bool:
        """Whether it ranks running requests by a rule of its own."""
        return False

    @classmethod
    def host_pools(
        cls, settings: Mapping[str, Any], block_bytes: HostPools, found: HostPools
    ) -> HostPools | None:
        """The blocks of a run's host pools by its settings, to which `kvscope check` holds the run.

        `settings` are those of the policy; `found` are the pools of the run. None if the settings
        do not tell: of a policy with a pool, unless it says so here.
        """
        return HostPools() if cls.pool_blocks is Overflow.pool_blocks else None

    def refusal(self, groups: Sequence[KvGroup]) -> str:
        """Why it does not take a model with such KV groups, in a sentence; '' if it does."""
        return ""

    def pool_blocks(self, experiment: Conditions) -> int:
        """The size of its host pool in blocks; 0 without a pool."""
        return 0

    def staging_bytes(self, experiment: Conditions) -> int:
        """Bytes of a GPU's memory that its copies take beside weights, cache and activations."""
        return 0

    def predictions_s(self, experiment: Conditions, tokens: int, beside: int) -> dict[str, float]:
        """The seconds that it predicts for a victim of so many tokens, by the name of the action.

        `beside` requests run with it. `kvscope check` compares `preemptions.predicted_s`. Empty if
        it predicts nothing, or from more than this.
        """
        return {}

    @property
    def cost_hardware(self) -> tuple[str | None, Mapping[str, float]]:
        """The data file of the hardware that its cost model is of, and constants in their place.

        None stands for the experiment's device.
        """
        return None, {}

    def action_alone(self, experiment: Conditions) -> Callable[[int], str]:
        """A function: the name of the action for a victim of so many tokens that runs alone.

        The host has room for it.
        """
        return lambda tokens: "recompute"

    def pool_bytes(self, experiment: Conditions) -> int:
        """Bytes of its host pool."""
        return self.pool_blocks(experiment) * experiment.block_bytes
