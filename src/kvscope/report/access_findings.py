"""What the traced experiments say about blocks between their accesses, in a sentence."""

from collections.abc import Sequence

from kvscope.report.data import Run, StudyData
from kvscope.report.words import IDLE_P50, IDLE_SHARE, NBSP, Shown, number_text, plural


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
