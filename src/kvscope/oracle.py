"""What an oracle is: a sentence that must hold, held against what a run has recorded.

An oracle has a name, a sentence and a function that looks for what contradicts it. The function
answers None where the sentence says nothing of what it was shown: a run that never preempts tells
nothing of copies.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Subject = TypeVar("Subject")

HELD, VIOLATED, NOT_APPLICABLE = "held", "violated", "not applicable"


@dataclass(frozen=True)
class Violations:
    """How often something does not hold, and the first case in words; 0 and '' if it holds."""

    count: int = 0
    first: str = ""

    def __bool__(self) -> bool:
        return self.count > 0


NONE = Violations()


@dataclass(frozen=True)
class Oracle(Generic[Subject]):
    """A sentence about a subject, and the function that looks for what contradicts it."""

    look: Callable[[Subject], Violations | None]

    @property
    def name(self) -> str:
        """What a violation is called in `reasons`: the function's name."""
        return self.look.__name__

    @property
    def sentence(self) -> str:
        """What must hold: the first paragraph of the function's documentation, in one line."""
        return " ".join((self.look.__doc__ or "").partition("\n\n")[0].split())


@dataclass(frozen=True)
class Verdict:
    """What an oracle found: held, violated or not applicable, and the first violation."""

    name: str
    sentence: str
    state: str
    violations: int = 0
    first: str = ""


def verdict(oracle: Oracle[Subject], found: Violations | None) -> Verdict:
    """An oracle's verdict from what it found."""
    if found is None:
        return Verdict(oracle.name, oracle.sentence, NOT_APPLICABLE)
    state = VIOLATED if found else HELD
    return Verdict(oracle.name, oracle.sentence, state, found.count, found.first)
