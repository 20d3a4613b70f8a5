"""Claims of the paper, and how values decide them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvscope.api.wording import wording
from kvscope_paper.claims.values import Values

HOLDS, IN_PART, FAILS, UNKNOWN = "holds", "holds in part", "does not hold", "cannot be told"
MARKS = {HOLDS: "holds", IN_PART: "part", FAILS: "fails", UNKNOWN: "unknown"}  # CSS classes

# How the words of the claims are read, as shares.
LITTLE = 0.10  # 'little', 'close to', 'about'
SHARP = 0.20  # 'sharp', 'much'
MINUS = "\N{MINUS SIGN}"
PER_CENT = f"{wording.NBSP}%"
TIE = 0.01  # two costs that differ by less are equal
POINT = 0.01  # what is said in whole percent is within one of them


@dataclass(frozen=True)
class Finding:
    """A verdict and the sentences that it rests on."""

    verdict: str
    evidence: str

    @property
    def mark(self) -> str:
        """The verdict as a CSS class."""
        return MARKS[self.verdict]


NOT_RUN = Finding(UNKNOWN, "Not run.")
MODELED_ACCESSES = Finding(
    UNKNOWN, "The model sets which accesses there are, in which order and when; none is measured."
)

Judge = Callable[[Values], Finding | None]


@dataclass(frozen=True)
class Claim:
    """One observation, in our words: where it stands and what decides it.

    `figures` are those that it rests on, `published` the finding for the published data. `judge`
    makes that for ours, None where the values are not there.
    """

    figures: tuple[str, ...]
    section: str
    words: str
    published: Finding
    judge: Judge

    def ours(self, values: Values) -> Finding:
        """The finding for our values."""
        return self.judge(values) or NOT_RUN


def by_count(right: Sequence[bool], evidence: str) -> Finding | None:
    """All hold, none does, or a part; None without any. `{}` in the evidence is 'n of m'."""
    if not right:
        return None
    verdict = HOLDS if all(right) else IN_PART if any(right) else FAILS
    return Finding(verdict, evidence.format(f"{sum(right)} of {len(right)}"))


def undecided(values: Values, figure: str, because: str) -> Finding | None:
    """Finding that experiments with the figure's values decide no more than the published ones."""
    return Finding(UNKNOWN, because) if values.of(figure) else None


def within(share: float, limit: float) -> bool:
    """True if a share is within a limit, unrounded; it is rounded where it is shown."""
    return abs(share) <= limit


def span(shares: Sequence[float]) -> str:
    """'least to most' in percent."""
    least, most = wording.percent(min(shares)), wording.percent(max(shares))
    words = most if least == most else f"{least.removesuffix(PER_CENT)} to {most}"
    return words.replace("-", MINUS)
