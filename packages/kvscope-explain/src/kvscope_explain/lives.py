"""Section of the page on slow requests, as `kvscope explain` tells them."""

from collections.abc import Iterator
from typing import Any

from kvscope.api.runs import RunView
from kvscope.api.sections import ReportedRun, StudyData
from kvscope.api.words import quantities as words
from kvscope_explain.causes import MEANINGS
from kvscope_explain.explained import (
    PREEMPTIONS,
    WAITS,
    Loss,
    costliest,
    longest_waits,
    sentence,
    total_words,
)
from kvscope_explain.life import Lives, Stretch, seconds_by_cause

MOST_RUNS = 12  # that the page explains: each costs its size and seconds to read
MOST_REQUESTS = 10  # of each, the slowest
MOST_LINES = 40  # of a request, the longest stretches


def lives_of(study: StudyData) -> dict[str, Any]:
    """Data for the page's script: the `causes` that occur, and the `runs` that are explained.

    `left_out` is the number of experiments that could be explained, too.
    """
    shown, left_out = explained(study)
    runs = [_run(run) for run in shown]
    occurring = {cause for run in runs for cause, *_ in run["parts"]}
    return {
        "causes": [[cause, words] for cause, words in MEANINGS.items() if cause in occurring],
        "runs": runs,
        "left_out": left_out,
    }


def explained(study: StudyData) -> tuple[list[ReportedRun], int]:
    """The runs whose requests the page explains, and the number of those beyond MOST_RUNS."""
    runs = [run for run in study.complete if _has_requests(run)]
    return runs[:MOST_RUNS], len(runs[MOST_RUNS:])


def _has_requests(run: ReportedRun) -> bool:
    records = run.records
    return not run.record.imported_from and not any(
        not records.has_rows(name) for name in ("steps", "batch", "requests")
    )


def _run(run: ReportedRun) -> dict[str, Any]:
    """Template context for one run: its costliest losses, their requests and the slowest."""
    repeat = run.records.of_repeat(min(run.records.timed))
    assert isinstance(repeat, RunView)
    lives = Lives(repeat, run.settings)
    losses = {PREEMPTIONS: costliest(lives.all), WAITS: longest_waits(lives.all)}
    of_losses = (loss.request_id for each in losses.values() for loss in each)
    shown = {*[*lives.latencies_s][:MOST_REQUESTS], *of_losses}
    return {
        "id": run.id,
        "label": run.label,
        "summary": total_words(lives),
        "parts": _parts(lives.all),
        "losses": [[heading, _losses(each)] for heading, each in losses.items() if each],
        "requests": [_request(lives, name) for name in lives.latencies_s if name in shown],
    }


def _losses(losses: list[Loss]) -> list[list[str]]:
    """Request, seconds and sentence of each."""
    return [[one.request_id, words.short_duration(one.duration_s), one.sentence] for one in losses]


def _request(lives: Lives, request_id: str) -> dict[str, Any]:
    stretches, row = lives.of(request_id), lives.row(request_id)
    return {
        "id": request_id,
        "took": words.short_duration(lives.latencies_s[request_id]),
        "preemptions": int(row["preemptions"]),
        "aborted": bool(row["aborted"]),
        "parts": _parts(stretches),
        "lines": list(_lines(stretches)),
    }


def _parts(stretches: list[Stretch]) -> list[list[Any]]:
    """Share and seconds of each cause."""
    spent = seconds_by_cause(stretches)
    total_s = sum(spent.values()) or 1.0
    return [
        [cause, round(took / total_s, 4), words.short_duration(took)]
        for cause, took in spent.items()
    ]


def _lines(stretches: list[Stretch]) -> Iterator[list[str]]:
    """Start, duration, main cause and sentence of each stretch; shorter ones share a line."""
    by_length = sorted(stretches, key=lambda stretch: -stretch.duration_s)
    shorter = by_length[MOST_LINES:]
    left_out = {id(stretch) for stretch in shorter}
    for stretch in stretches:
        if id(stretch) not in left_out:
            begins = f"{stretch.start_s:.3f} s"
            yield [
                begins,
                words.short_duration(stretch.duration_s),
                max(stretch.causes, key=lambda cause: stretch.causes[cause]),
                sentence(stretch),
            ]
    if shorter:
        together = words.short_duration(sum(stretch.duration_s for stretch in shorter))
        yield [
            "",
            together,
            "",
            f"in {words.plural(len(shorter), 'shorter stretch')} between these",
        ]
