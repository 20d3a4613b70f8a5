"""Account of the tokens of requests: found, or computed for exactly one cause each."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

NEW = "new"
OUTPUT = "output"
OFF = "prefix caching is off"
EVICTED = "evicted"
BEHIND = "behind an evicted block"
SHORT = "shorter than a block"
UNDER_WAY = "asked while still computed"
LAST = "last token"
PREEMPTED = "preempted"
CAUSES = {
    NEW: "no earlier request had computed this prefix",
    OUTPUT: "tokens after the prompt, each computed to give the next",
    EVICTED: "an earlier request had computed it, and its block left the cache",
    BEHIND: "still cached, but a block before it was evicted",
    SHORT: "an earlier request had computed it in a block that differs in a later token, or is "
    "not full",
    UNDER_WAY: "an earlier request that ran at that moment had not yet computed it",
    LAST: "all of the prompt is cached, but its newest token must be computed, which takes its "
    "whole block",
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


@dataclass
class Account:
    """Tokens of a request, or of several.

    `found` were in the prefix cache when it was admitted or resumed, `loaded` came from the host by
    vLLM's offloading, `copied` by a policy's copies. `computed` counts tokens by cause, `evicted`
    those of EVICTED by what is known of the eviction. `unserved` are tokens that a request asked
    for, and was preempted or aborted before they were computed. `asked` is the sum of all but
    outputs.
    """

    asked: int = 0
    found: int = 0
    loaded: int = 0
    copied: int = 0
    unserved: int = 0
    computed: Counter[str] = field(default_factory=Counter)
    evicted: Counter[Eviction] = field(default_factory=Counter)

    @property
    def tokens(self) -> int:
        """All tokens that passes computed."""
        return self.computed.total()

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
        return total
