"""What an oracle is: a sentence that must hold, held against what a run has recorded.

An oracle has a name, a sentence and a function that looks for what contradicts it. The function
answers None where the sentence does not apply: a run that never preempts says nothing of copies.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy.typing as npt

Subject = TypeVar("Subject")

HELD, VIOLATED, NOT_APPLICABLE = "held", "violated", "not applicable"


@dataclass(frozen=True)
class Violations:
    """How often something does not hold, and the first case in words; 0 and '' if it holds."""

    count: int = 0
    first: str = ""

    def __bool__(self) -> bool:
        return self.count > 0

    def __add__(self, other: "Violations") -> "Violations":
        return Violations(self.count + other.count, self.first or other.first)


NONE = Violations()


def violations(places: Sequence[Any] | npt.NDArray[Any], words: Callable[[Any], str]) -> Violations:
    """One violation at each of these places, and what is wrong at the first in words."""
    return Violations(len(places), words(places[0])) if len(places) else NONE


@dataclass(frozen=True)
class Need(Generic[Subject]):
    """What must have been recorded for a sentence to say anything: in words, and whether it was."""

    words: str = ""
    met: Callable[[Subject], bool] = lambda _: True


@dataclass(frozen=True)
class Oracle(Generic[Subject]):
    """A sentence about a subject, the function that looks for what contradicts it, and its need.

    A function may also find out itself that the sentence does not apply, and answer None.
    """

    function: Callable[[Subject], Violations | None]
    need: Need[Subject] = Need()

    @property
    def needs(self) -> str:
        """Its need in words."""
        return self.need.words

    def check(self, subject: Subject) -> Violations | None:
        """What contradicts the sentence; None where it does not apply."""
        return self.function(subject) if self.need.met(subject) else None

    @property
    def name(self) -> str:
        """What a violation is called in `reasons`: the function's name."""
        return self.function.__name__

    @property
    def sentence(self) -> str:
        """What must hold: the first paragraph of the function's documentation, in one line."""
        return self._paragraphs[0]

    @property
    def details(self) -> str:
        """What else its documentation says, in one line."""
        return " ".join(self._paragraphs[1:])

    @property
    def _paragraphs(self) -> list[str]:
        return [" ".join(part.split()) for part in (self.function.__doc__ or "").split("\n\n")]


@dataclass(frozen=True)
class Verdict:
    """What an oracle found: held, violated or not applicable, and the first violation."""

    name: str
    sentence: str
    needs: str
    state: str
    violations: int = 0
    first: str = ""


def verdict(oracle: Oracle[Subject], found: Violations | None) -> Verdict:
    """An oracle's verdict from what it found."""
    of = oracle.name, oracle.sentence, oracle.needs
    if found is None:
        return Verdict(*of, NOT_APPLICABLE)
    return Verdict(*of, VIOLATED if found else HELD, found.count, found.first)


def judge(oracles: Iterable[Oracle[Subject]], subject: Subject) -> list[Verdict]:
    """The verdict of each oracle on a subject."""
    return [verdict(oracle, oracle.check(subject)) for oracle in oracles]
