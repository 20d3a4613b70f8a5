"""The checklist of the page: each oracle, and in how many experiments it held."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.analyse.checklist import EVERY_ORACLE
from kvscope.oracle import HELD, NOT_APPLICABLE, VIOLATED, Verdict
from kvscope.report.data import Run


@dataclass(frozen=True)
class Check:
    """An oracle over the experiments of a study."""

    name: str
    sentence: str
    held: int
    violated: tuple[str, ...]  # labels of the experiments that violate it
    first: str  # the first violation in words
    needs: str

    @property
    def state(self) -> str:
        """'violated' if any experiment violates it, else 'held' if it held in any."""
        return VIOLATED if self.violated else HELD if self.held else NOT_APPLICABLE


def checklist(runs: Sequence[Run]) -> list[Check]:
    """Every oracle, in order; empty if no run has a verdict."""
    if not any(run.verdicts for run in runs):
        return []
    found = [(run, verdict) for run in runs for verdict in run.verdicts]
    return [
        _check([each for each in found if each[1].name == oracle.name], oracle.name)
        for oracle in EVERY_ORACLE
    ]


def _check(found: Sequence[tuple[Run, Verdict]], name: str) -> Check:
    oracle = next(oracle for oracle in EVERY_ORACLE if oracle.name == name)
    violated = [(run.label, verdict.first) for run, verdict in found if verdict.state == VIOLATED]
    return Check(
        name=name,
        sentence=oracle.sentence,
        held=sum(verdict.state == HELD for _, verdict in found),
        violated=tuple(label for label, _ in violated),
        first=violated[0][1] if violated else "",
        needs=oracle.needs,
    )
