"""Findings of traced experiments: whether their KV events are sound, and how long blocks idle."""

from collections.abc import Sequence

from kvscope.analyse.metric import Measure
from kvscope.analyse.study_metrics import MEASURES
from kvscope.collect.oracles.registry import NAMES
from kvscope.report.data import Run, StudyData
from kvscope.report.words import (
    NBSP,
    number_text,
    plural,
)


def events_recorded(study: StudyData) -> list[str]:
    """How many events were recorded and dropped, and whether the oracles hold.

    Empty without traced experiments. Imports are left out: their dropped events are not counted.
    """
    tracing = {run.id: run.facts.get("tracing", {}) for run in study.complete}
    runs = [run for run in study.complete if tracing[run.id].get("dropped_events") is not None]
    if not runs:
        return []
    events, dropped = (
        sum(tracing[run.id][key] for run in runs) for key in ("events", "dropped_events")
    )
    doubtful = [run for run in runs if {*run.reasons} & {*NAMES}]
    verdict = (
        f"some are violated in {plural(len(doubtful), 'experiment')}" if doubtful else "all hold"
    )
    return [
        f"In {plural(len(runs), 'traced experiment')} the attention kernels recorded {events:,} "
        f"accesses to the KV cache and dropped {dropped:,}. Of {len(NAMES)} oracles that compare "
        f"them with the scheduler's decisions, {verdict}."
    ]


def idle_blocks(study: StudyData) -> list[str]:
    """How long blocks are idle, over the valid experiments that measure it; empty without any."""
    runs = [run for run in study.runs if run.valid and _known(run)]
    if not runs:
        return []
    subject = f"In {plural(len(runs), 'traced experiment')} a block of a layer is idle"
    share, time = (_range(runs, MEASURES[name]) for name in ("kv_idle_share", "kv_idle_p50_s"))
    return [
        f"{subject} for {share} of the time from its first to its last access; the median idle "
        f"time between two accesses is {time}."
    ]


def _known(run: Run) -> bool:
    return all(run.number(name).value > 0 for name in ("kv_idle_share", "kv_idle_p50_s"))


def _range(runs: Sequence[Run], shown: Measure) -> str:
    """The lowest and the highest value: '82 to 86 %'; one of them if both read the same."""
    values = [run.number(shown.name).value * shown.scale for run in runs]
    low, high = number_text(min(values)), number_text(max(values))
    return f"{low if low == high else f'{low} to {high}'}{NBSP}{shown.display_unit}"
