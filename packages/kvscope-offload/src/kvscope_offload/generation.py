"""Batch of requests from its prompts to its last tokens: blocks, mini-batches, passes.

How long each request is is known from the beginning, so the passes can be laid out ahead of the
computation: pass 0 computes the prompts and gives the first tokens, pass p stores token p and gives
the next one.
"""

from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field
from itertools import pairwise
from math import inf
from typing import NamedTuple

from kvscope.api.errors import BadInput
from kvscope.api.settings import Conditions, fields
from kvscope_offload.amounts import effort, width_bytes
from kvscope_offload.blocks import Content, Kind, Minibatch, Place, Pools, Row, Sequence
from kvscope_offload.cost import CostModel, Sizes
from kvscope_offload.minibatches import balanced, in_order
from kvscope_offload.pipeline import Pass
from kvscope_offload.placement import Placement
from kvscope_offload.policy import OffloadPolicy
from kvscope_offload.simulation import Excerpt, simulate
from kvscope_offload.split import Demand, Split
from kvscope_offload.tally import sampled_rows

TRIAL_LAYERS = 3  # a load, a product and a store, each of its own layer, may be under way at once
TRIAL_TASKS = 400  # more layers where they have fewer mini-batches of passes than these in all
TRIAL_ROWS = 640  # of the passes on which a split is tried: each request is a row of each


class Length(NamedTuple):
    """Length of a request."""

    prompt_tokens: int
    output_tokens: int


@dataclass
class Generation:
    """The passes of one batch of requests under a policy; `known` is its split if it was chosen."""

    policy: OffloadPolicy
    cost: CostModel
    layers: int
    block_size: int
    lengths: list[Length]
    sequences: list[Sequence] = field(default_factory=list)
    known: InitVar[Split | None] = None

    def __post_init__(self, known: Split | None) -> None:
        self.sequences = [
            Sequence(i, length.prompt_tokens, length.output_tokens, self.block_size)
            for i, length in enumerate(self.lengths)
        ]
        self.split = known or self.policy.split(self.cost, self.demand(), self)
        self.placement = Placement(self.split)
        self.sizes = self._pool_sizes(self.split)
        if self._host_bytes(self.sizes) > self.host_room:
            raise BadInput(self._too_small(self._host_bytes(self.sizes)))
        self.pools = Pools(self.sizes)

    def demand(self) -> Demand:
        """A step of decoding half-way through the generation."""
        tokens = sum(s.prompt_tokens + s.output_tokens // 2 for s in self.sequences)
        policy = self.policy
        return Demand(
            len(self.sequences),
            tokens,
            min(policy.minibatches, len(self.sequences)),
            policy.device_bytes / self.layers,
            policy.host_gib and policy.host_gib * fields.GIB / self.layers,
            policy.streamed,
        )

    def fits(self, split: Split) -> bool:
        """True if the host holds its part of a split to the end of the batch."""
        return self._host_bytes(self._pool_sizes(split)) <= self.host_room

    def trial_s(self, split: Split) -> float:
        """Seconds of decoding with a split, in so many layers as behave like all; inf without room.

        Passes of the batch run on the schedule, each counted as often as passes are like it.
        """
        sizes, counts = self._pool_sizes(split), self._sampled_passes()
        if self._host_bytes(sizes) > self.host_room:
            return inf
        rows = sampled_rows(self.sequences, split, sizes, counts)
        passes = [
            Pass(number, not number, self._minibatches(each, prefill=not number))
            for number, each in zip(counts, rows, strict=True)
        ]
        tasks = sum(len(each.minibatches) for each in passes)
        layers = min(self.layers, max(TRIAL_LAYERS, TRIAL_TASKS // tasks))
        ends_s = simulate(Excerpt(self.policy, self.cost, layers, passes)).ends_s
        lasted_s = [end - start for start, end in pairwise(ends_s)] or ends_s
        stands_for = [*counts.values()][-len(lasted_s) :]
        return sum(n * seconds for n, seconds in zip(stands_for, lasted_s, strict=True))

    def _sampled_passes(self) -> dict[int, float]:
        """Numbers of passes and how many each stands for: all of a small batch, each for itself.

        The prompts', the first and the last of decoding stand for themselves; those between are
        chosen evenly, for as many in all as there are.
        """
        last = max(s.output_tokens for s in self.sequences) - 1
        between = range(2, last)
        samples = min(len(between), max(1, TRIAL_ROWS // len(self.sequences)))
        chosen = {
            between[len(between) * (2 * i + 1) // (2 * samples)]: len(between) / samples
            for i in range(samples)
        }
        return {0: 1, min(1, last): 1} | chosen | {last: 1}

    @property
    def host_room(self) -> float:
        """Bytes of the cache that the host may hold."""
        return (self.policy.host_gib or 0.0) * fields.GIB if self.policy.host_cache else 0.0

    def block_bytes(self, content: Content) -> int:
        """Bytes of a block over all layers."""
        return self.layers * self.block_size * width_bytes(self.cost.sizes, content)

    def passes(self) -> Iterator[Pass]:
        """All passes, each laid out when it is due to be loaded, one ahead of the computation."""
        most = max(s.output_tokens for s in self.sequences)
        running = self.sequences
        for number in range(most):
            for sequence in running:
                self._grow(sequence, number)
            rows = [s.row(1 if number else s.prompt_tokens) for s in running]
            yield Pass(number, not number, self._minibatches(rows, prefill=not number))
            for sequence, row in zip(running, rows, strict=True):
                sequence.advance(row)
            running = [s for s in running if not self._ends(s, number)]

    def _ends(self, sequence: Sequence, number: int) -> bool:
        """True if this pass was a request's last one; its blocks are then free."""
        if sequence.output_tokens > number + 1:
            return False
        self.pools.release(sequence.blocks)
        sequence.blocks = []
        return True

    def _grow(self, sequence: Sequence, number: int) -> None:
        """Give a request the blocks for the tokens that this pass stores."""
        if not number:
            blocks = -(-sequence.prompt_tokens // self.block_size)
            contents = self.placement.prompt(blocks)
            sequence.blocks = [self.pools.allocate(content) for content in contents]
        elif sequence.tokens % self.block_size == 0:
            sequence.blocks.append(self.pools.allocate(self.placement.further()))

    def _minibatches(self, rows: list[Row], prefill: bool) -> list[Minibatch]:
        count = self.policy.minibatches
        if prefill or not self.policy.formation:
            groups = in_order(len(rows), count)
        else:
            groups = balanced([effort(self.cost, row) for row in rows], count)
        return [Minibatch([rows[i] for i in group]) for group in groups]

    def _pool_sizes(self, split: Split) -> dict[Kind, int]:
        """The device's pool holds activations first, then K and V; the host the rest."""
        needs = self._needs(split)
        device_bytes = self.policy.device_bytes
        sizes: dict[Kind, int] = {}
        for content in (Content.ACTIVATION, Content.KV):
            fits = int(device_bytes // self.block_bytes(content))
            on_device = min(needs[content], fits)
            device_bytes -= on_device * self.block_bytes(content)
            sizes[Kind(content, Place.DEVICE)] = on_device
            sizes[Kind(content, Place.HOST)] = needs[content] - on_device
        return sizes

    def _host_bytes(self, sizes: dict[Kind, int]) -> int:
        return sum(
            blocks * self.block_bytes(kind.content)
            for kind, blocks in sizes.items()
            if kind.place is Place.HOST
        )

    def _too_small(self, on_host: int) -> str:
        """Sentence on a host memory that is too small for so many bytes, with the remedy."""
        count, policy = len(self.sequences), self.policy
        who = f"{count} requests at once" if count > 1 else "one request"
        remedy = "raise it or serve fewer requests at once (engine.max_num_seqs)"
        if policy.host_cache:
            return (
                f"cache.blocks gives the host {policy.host_gib or 0:.3g} GiB, but {who} keep "
                f"{on_host / fields.GIB:.3g} GiB there with device.policy={policy.name}; {remedy}"
            )
        return (
            f"device.device_gib ({policy.device_gib or 0:g}) is {on_host / fields.GIB:.3g} GiB too "
            f"small for {who} with device.policy={policy.name}; {remedy}"
        )

    def _needs(self, split: Split) -> dict[Content, int]:
        """Blocks of each content if all requests stay to the end."""
        placement = Placement(split)
        contents: list[Content] = []
        for s in self.sequences:
            contents += placement.prompt(-(-s.prompt_tokens // self.block_size))
        grown = sum(
            -(-s.total_tokens // self.block_size) + (s.prompt_tokens // -self.block_size)
            for s in self.sequences
        )
        contents += [placement.further() for _ in range(grown)]
        return {content: contents.count(content) for content in (Content.KV, Content.ACTIVATION)}


@dataclass(frozen=True)
class Limits:
    """Limits of a batch: requests, prompt tokens, and blocks on device and host together."""

    requests: int = 1024
    tokens: int | None = None
    blocks: int | None = None

    @classmethod
    def of(cls, experiment: Conditions) -> "Limits":
        """Limits of an experiment's engine and cache."""
        engine = experiment.engine
        return cls(engine.max_num_seqs, engine.max_num_batched_tokens, experiment.cache_blocks)


def rounds(
    policy: OffloadPolicy,
    sizes: Sizes,
    layers: int,
    block_size: int,
    lengths: list[Length],
    limits: Limits,
) -> list[list[int]]:
    """Requests in order, by number, in batches within the limits.

    A policy without a cache on the host is held to the room on the device, too. A request that is
    too long for any batch is a batch of its own, and is refused where its blocks are allocated.
    """
    blocks_left = limits.blocks if limits.blocks is not None else 2**62
    if not policy.host_cache:
        block_bytes = layers * block_size * sizes.kv_bytes
        blocks_left = min(blocks_left, int(policy.device_bytes // block_bytes))
    room = (limits.requests, 2**62 if limits.tokens is None else limits.tokens, blocks_left)
    batches: list[list[int]] = []
    left = (0, 0, 0)
    for i, length in enumerate(lengths):
        blocks = -(-(length.prompt_tokens + length.output_tokens - 1) // block_size)
        needed = (1, length.prompt_tokens, blocks)
        if any(need > have for need, have in zip(needed, left, strict=True)):
            batches.append([])
            left = room
        batches[-1].append(i)
        left = (left[0] - 1, left[1] - length.prompt_tokens, left[2] - blocks)
    return batches
