"""Oracles: statements that must hold for every run, checked against its records.

An oracle has a name, a sentence and a function that finds violations of the sentence. The function
returns None if the sentence does not apply: a run without preemptions has no copies to check.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy.typing as npt

from kvscope.tables.verdict import HELD, NOT_APPLICABLE, VIOLATED, Verdict

Subject = TypeVar("Subject")
LAST = 1000  # place of an oracle without an order


@dataclass(frozen=True)
class Violations:
    """The number of violations, and a description of the first; 0 and '' without violations."""

    count: int = 0
    first: str = ""

    def __bool__(self) -> bool:
        return self.count > 0

    def __add__(self, other: "Violations") -> "Violations":
        return Violations(self.count + other.count, self.first or other.first)


NONE = Violations()


def violations(places: Sequence[Any] | npt.NDArray[Any], words: Callable[[Any], str]) -> Violations:
    """Violations, one for each of `places`; `words` describes the first."""
    return Violations(len(places), words(places[0])) if len(places) else NONE


@dataclass(frozen=True)
class Need(Generic[Subject]):
    """Condition for an oracle to apply to a run: a description and a predicate."""

    words: str = ""
    met: Callable[[Subject], bool] = lambda _: True


@dataclass(frozen=True)
class Oracle(Generic[Subject]):
    """A function that finds violations of its docstring's sentence in a subject, and its need.

    The function returns None if the sentence does not apply to the subject. `order` is the place of
    a package's oracle on the checklist, where kvscope's own of tables stand at 10, 20, …
    """

    function: Callable[[Subject], Violations | None]
    need: Need[Subject] = Need()
    order: int = LAST

    @property
    def needs(self) -> str:
        """The description of the oracle's need."""
        return self.need.words

    def check(self, subject: Subject) -> Violations | None:
        """Return the violations in `subject`; None if the oracle does not apply."""
        return self.function(subject) if self.need.met(subject) else None

    @property
    def name(self) -> str:
        """The name of the oracle in `reasons`: the function's name."""
        return self.function.__name__

    @property
    def sentence(self) -> str:
        """The rule that must hold: the first paragraph of the function's docstring, on one line."""
        return self._paragraphs[0]

    @property
    def details(self) -> str:
        """The further paragraphs of the function's docstring, on one line."""
        return " ".join(self._paragraphs[1:])

    @property
    def _paragraphs(self) -> list[str]:
        return [" ".join(part.split()) for part in (self.function.__doc__ or "").split("\n\n")]


def verdict(oracle: Oracle[Subject], found: Violations | None) -> Verdict:
    """Make an oracle's verdict from the violations it found (None: not applicable)."""
    oracle_ = oracle.name, oracle.sentence, oracle.needs
    if found is None:
        return Verdict(*oracle_, NOT_APPLICABLE)
    return Verdict(*oracle_, VIOLATED if found else HELD, found.count, found.first)


def judge(oracles: Iterable[Oracle[Subject]], subject: Subject) -> list[Verdict]:
    """The verdict of each oracle on a subject."""
    return [verdict(oracle, oracle.check(subject)) for oracle in oracles]
