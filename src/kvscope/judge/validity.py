"""The validity of a run: the reasons why it is not valid, each with the figures behind it."""

from collections.abc import Iterable

from kvscope.base.time_sources import MODELED
from kvscope.judge.checklist import checklist
from kvscope.judge.reason import (
    FAILED,
    NO_WARM_UP,
    PROFILER_LOST_EVENTS,
    WARM_UP_INCOMPLETE,
    Reason,
)
from kvscope.judge.records import Records
from kvscope.tables.run_view import RunView
from kvscope.tables.runschema import ProfilerRecord
from kvscope.tables.verdict import VIOLATED, Verdict


def check_warm_up(records: RunView) -> list[Reason]:
    """NO_WARM_UP, or WARM_UP_INCOMPLETE if warm-up missed a shape class that it must have met.

    Where requests arrive or are aborted in real time, the passes depend on the machine's speed, and
    those of the warm-up need not be those of the repeats.
    """
    warm_up = records.record.warmup
    if not warm_up.passes:
        return [NO_WARM_UP.with_detail("nothing ran before the measured part")]
    missed = warm_up.uncovered_classes
    if not missed or records.depends_on_speed:
        return []
    return [WARM_UP_INCOMPLETE.with_detail(f"classes {', '.join(missed)}")]


def check_profiler(profiler: ProfilerRecord | None) -> list[Reason]:
    """PROFILER_LOST_EVENTS if a profile was requested and there is no complete trace."""
    if profiler and profiler.requested == "nsys" and profiler.reason:
        return [PROFILER_LOST_EVENTS.with_detail(profiler.reason)]
    return []


def check_oracles(verdicts: Iterable[Verdict]) -> list[Reason]:
    """A reason for each violated oracle."""
    return [
        Reason(verdict.name, f"{verdict.violations} ({verdict.first})")
        for verdict in verdicts
        if verdict.state == VIOLATED
    ]


def reasons_of(records: Records) -> list[Reason]:
    """All reasons why a run is not valid, of its records alone."""
    return find_reasons(records, checklist(records))


def find_reasons(records: RunView, verdicts: Iterable[Verdict]) -> list[Reason]:
    """All reasons why a run is not valid; empty if it is valid.

    Imported runs and recordings have no warm-up and no profiler of kvscope's, and modeled times
    need neither.
    """
    record = records.record
    if not record.complete:
        return [FAILED.with_detail(record.reason or "unknown")]
    reasons = check_oracles(verdicts)
    if records.time_source == MODELED or record.imported_from or record.recorded:
        return reasons
    return [*reasons, *check_warm_up(records), *check_profiler(record.profiler)]
