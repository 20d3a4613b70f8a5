"""The state of a study in lines for the console: which experiments are complete and valid."""

from collections import Counter
from collections.abc import Iterator

from kvscope.report.conditions import conditions, missed_widths
from kvscope.report.data import DAMAGED, REFUSED, RUNNING, StudyData
from kvscope.report.words import plural


def verdict(study: StudyData) -> str:
    """How many experiments there are, have results, and are valid; the others by their state."""
    parts = [
        plural(len(study.runs), "experiment"),
        f"{len(study.complete):,} complete",
        f"{study.count(lambda run: run.valid):,} valid",
    ]
    states = Counter(run.status for run in study.runs if not run.complete)
    parts += [f"{count:,} {state}" for state, count in states.items()]
    return ", ".join(parts)


def summary(study: StudyData, submitted: bool = False) -> Iterator[str]:
    """The verdict and the conditions; what is not valid or without results, and why; what to do.

    `submitted` to a cluster: what it ran there is not to be run on this machine.
    """
    yield f"{study.name}: {verdict(study)}"
    yield from filter(None, (conditions(study).line, missed_widths(study)))
    for run in study.runs:
        if not run.complete:
            yield f"  {run.label}: {run.status}{f', {run.failure}' if run.failure else ''}"
        elif not run.valid:
            yield f"  {run.label}: not valid, {'; '.join(run.doubts)}"
        if run.again:
            yield f"  {run.label}: {run.again}"
    if study.planned:
        yield from _remedies(study, submitted)


def _remedies(study: StudyData, submitted: bool) -> Iterator[str]:
    if study.count(lambda run: run.status == RUNNING):
        return  # what is missing is being made
    profile = "PROFILE-OF-THE-CLUSTER" if submitted else "profiles/local"
    command = f"snakemake --profile {profile} --config {study.options}"
    if study.count(lambda run: run.status == DAMAGED):
        yield f"Make again what is damaged or not valid: {command} remeasure=invalid"
    elif not study.finished:
        yield f"Make what is missing: {command}"
    elif study.count(lambda run: not run.valid):
        yield f"Measure again what is not valid: {command} remeasure=invalid"


def refusals(study: StudyData) -> list[str]:
    """The experiments whose recorded results are not shown, each with its state."""
    return [f"{run.id} ({run.status})" for run in study.runs if run.status in REFUSED]
