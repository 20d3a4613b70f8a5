"""Account of the tokens of requests: found, or computed for exactly one cause each."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

NEW = "new"
OUTPUT = "output"
SALTED = "salted"
OFF = "prefix caching is off"
EVICTED = "evicted"
BEHIND = "behind an evicted block"
SHORT = "shorter than a block"
UNDER_WAY = "asked while still computed"
LAST = "last token"
STATE = "state not kept"
UNTOLD = "not told"
PREEMPTED = "preempted"
CAUSES = {
    NEW: "no earlier request had computed this prefix",
    OUTPUT: "tokens after the prompt, each computed to give the next",
    EVICTED: "an earlier request had computed it, and its block left the cache",
    BEHIND: "still cached, but a block before it was evicted",
    SHORT: "an earlier request had computed it in a block that differs in a later token, or is "
    "not full",
    UNDER_WAY: "an earlier request that ran at that moment had not yet computed it",
    LAST: "all of the prompt was there, but its newest token must be computed, without a load from "
    "the host with its whole block",
    STATE: "attention has its blocks, and another KV group has no state, or window, at their end",
    UNTOLD: "an earlier request had computed it, and the recording does not tell which KV group "
    "lacked it",
    SALTED: "an earlier request had computed the same tokens, with another cache salt or LoRA "
    "adapter",
    OFF: "an earlier request had computed it, and nothing keeps it without a prefix cache",
    PREEMPTED: "the request had computed it, and lost it as it was preempted",
}
"""Meaning of each cause for which a pass computes a token."""
MISSED = tuple(cause for cause in CAUSES if cause not in (NEW, OUTPUT))
"""The causes of tokens that had been computed before."""


class Eviction(NamedTuple):
    """Evicted blocks that a request asked for.

    `distance_blocks` is their reuse distance: the different blocks that were used since a request
    last held them. `held_blocks` are, if that is less than the pool, the most blocks that requests
    held in between.
    """

    distance_blocks: int
    held_blocks: int | None = None


class Kept(NamedTuple):
    """What the KV groups of a model had of a request, whose look-up needs all of them.

    `whole_tokens` are the first tokens of which every group that keeps all tokens had the blocks,
    `part_tokens` the furthest position at which every other group, of states or windows, had what
    it keeps. `kinds` are these others.
    """

    whole_tokens: int
    part_tokens: int
    kinds: tuple[str, ...]


@dataclass
class Account:
    """Tokens of a request, or of several.

    When it is admitted or resumed, a request asks for the tokens of its prompt and those that it
    has had in the cache: `asked`. Of these, `found` are in the prefix cache, `loaded` come from the
    host by vLLM's offloading, `copied` by a policy's copies, `unserved` were not computed before it
    was preempted or aborted, and the others are `computed`. These also count outputs. `computed`
    are tokens by cause, `evicted` those of EVICTED and `kept` those of STATE by what is known.
    """

    asked: int = 0
    found: int = 0
    loaded: int = 0
    copied: int = 0
    unserved: int = 0
    computed: Counter[str] = field(default_factory=Counter)
    evicted: Counter[Eviction] = field(default_factory=Counter)
    kept: Counter[Kept] = field(default_factory=Counter)

    @property
    def tokens(self) -> int:
        """All tokens that passes computed."""
        return self.computed.total()

    @property
    def causes(self) -> list[tuple[str, int]]:
        """The causes with their tokens, the most frequent first."""
        return [(cause, count) for cause, count in self.computed.most_common() if count]

    @property
    def missed(self) -> int:
        """Tokens that passes computed although they had been computed before."""
        return sum(self.computed[cause] for cause in MISSED)

    @classmethod
    def of(cls, accounts: Iterable["Account"]) -> "Account":
        """The sum of accounts."""
        total = cls()
        for account in accounts:
            total.asked += account.asked
            total.found += account.found
            total.loaded += account.loaded
            total.copied += account.copied
            total.unserved += account.unserved
            total.computed.update(account.computed)
            total.evicted.update(account.evicted)
            total.kept.update(account.kept)
        return total


@dataclass(frozen=True)
class Accounts:
    """The accounts of all requests of a repeat, and the KV cache that they are about.

    `of_request` has a request that a pass computed, `prompt_tokens` every request. `token_ids`
    says whether tokens are known within blocks, which they are not in a recording. `stored_hits`
    are the tokens that each request found by the run's tables, which the replay should agree with.
    `host_blocks` are those of the host tier of vLLM's offloading.
    """

    of_request: Mapping[str, Account]
    prompt_tokens: Mapping[str, int]
    stored_hits: Mapping[str, int]
    token_ids: bool
    pool_blocks: int
    block_tokens: int
    block_bytes: int
    host_blocks: int = 0

    def of(self, request_id: str | None) -> Account:
        """The account of a request, or of all."""
        if request_id is None:
            return Account.of(self.of_request.values())
        return self.of_request.get(request_id, Account())

    def hits_stored(self, request_id: str | None) -> int:
        """Tokens that a request, or all, found by the run's tables."""
        if request_id is None:
            return sum(self.stored_hits.values())
        return self.stored_hits.get(request_id, 0)
