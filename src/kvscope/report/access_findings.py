"""What the traced experiments say: how sure their events are, and how long blocks lie idle."""

from collections.abc import Sequence

from kvscope.collect.oracles.registry import NAMES
from kvscope.report.data import Run, StudyData
from kvscope.report.words import IDLE_P50, IDLE_SHARE, NBSP, Shown, number_text, plural


def events_recorded(study: StudyData) -> list[str]:
    """How many events were recorded and dropped, and whether the oracles hold; none untraced.

    Not of imports: what those dropped was not counted.
    """
    tracing = {run.id: run.facts.get("tracing", {}) for run in study.complete}
    runs = [run for run in study.complete if tracing[run.id].get("dropped_events") is not None]
    if not runs:
        return []
    events, dropped = (
        sum(tracing[run.id][key] for run in runs) for key in ("events", "dropped_events")
    )
    doubtful = [run for run in runs if {*run.reasons} & {*NAMES}]
    verdict = f"{plural(len(doubtful), 'experiment')} violate" if doubtful else "all hold"
    return [
        f"In {plural(len(runs), 'traced experiment')} the attention kernels recorded {events:,} "
        f"accesses to the KV cache and dropped {dropped:,}. Held against what the scheduler did by "
        f"{len(NAMES)} oracles: {verdict}."
    ]


def idle_blocks(study: StudyData) -> list[str]:
    """How long blocks lie untouched, over the valid experiments that tell; none without any."""
    runs = [run for run in study.runs if run.valid and _known(run)]
    if not runs:
        return []
    subject = f"In {plural(len(runs), 'traced experiment')} a block of a layer lies untouched"
    share, time = (_range(runs, shown) for shown in (IDLE_SHARE, IDLE_P50))
    return [f"{subject} {share} of the time between its accesses: {time} at a time in the median."]


def _known(run: Run) -> bool:
    return all(run.number(shown.metric).value > 0 for shown in (IDLE_SHARE, IDLE_P50))


def _range(runs: Sequence[Run], shown: Shown) -> str:
    """The lowest and the highest value: '82 to 86 %'; one of them if they read alike."""
    values = [run.number(shown.metric).value * shown.scale for run in runs]
    low, high = number_text(min(values)), number_text(max(values))
    return f"{low if low == high else f'{low} to {high}'}{NBSP}{shown.unit}"
