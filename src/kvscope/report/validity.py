"""Validity of a study: complete runs, verdicts of oracles, equal tokens, and what to do next."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from kvscope.base.quantities import plural
from kvscope.base.time_sources import NOT_MEASURED
from kvscope.judge.checklist import every_oracle
from kvscope.judge.outputs import DIFFER, OutputGroup, Outputs, compare_outputs, output_hashes
from kvscope.report.conditions import conditions, missed_widths
from kvscope.report.data import DAMAGED, REFUSED, RUNNING, ReportedRun, StudyData
from kvscope.tables.oracle import Oracle
from kvscope.tables.verdict import HELD, NOT_APPLICABLE, VIOLATED, Verdict


def proofs(runs: Iterable[ReportedRun]) -> list[OutputGroup]:
    """Every group of complete experiments that must give the same tokens, by their ids."""
    return compare_outputs(
        {
            run.id: Outputs(
                run.settings,
                run.number("preemptions").value > 0,
                partial(_output_hashes, run),
                run.rehearsed,
            )
            for run in runs
            if run.complete and run.settings
        }
    )


def _output_hashes(run: ReportedRun) -> "pd.Series[str]":
    return output_hashes(run.records.requests)


def invalidate_differing(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """The runs, not valid where outputs differ that must be equal: which run errs is unknown."""
    wrong = {name: group for group in proofs(runs) if group.differing for name in group.names}
    return [_invalidate(run, wrong[run.id]) if run.id in wrong else run for run in runs]


def _invalidate(run: ReportedRun, group: OutputGroup) -> ReportedRun:
    assert run.metrics is not None
    names = [*run.reasons, DIFFER]
    detail = f"{group.differing} of {group.requests} requests, in {len(group.names)} experiments"
    metrics = run.metrics.assign(valid=False, reasons=";".join(names))
    return run.changed(metrics=metrics, doubts=(*run.doubts, f"{DIFFER} ({detail})"))


def same_tokens(study: StudyData) -> list[str]:
    """The result of comparing outputs, in a sentence; empty where nothing can be compared."""
    groups = proofs(study.complete)
    if not groups:
        return []
    experiments = sum(len(group.names) for group in groups)
    overflowed = sum(
        len(group.preempted) for group in groups if len(group.preempted) < len(group.names)
    )
    if differing := sum(group.differing for group in groups):
        return [
            f"{plural(differing, 'request')} got different tokens in experiments that must give "
            "the same ones: they have the same weights and prompts, and decode greedily in float32."
        ]
    sentence = (
        f"Every request got the same tokens in all of {plural(experiments, 'experiment')} with the "
        "same weights and prompts in float32"
    )
    if overflowed:
        sentence += f", {overflowed} of which preempted requests"
    return [f"{sentence}."]


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


def checklist(runs: Sequence[ReportedRun]) -> list[Check]:
    """Every oracle, in order; empty if no run has a verdict.

    Last come those of packages that are not installed here.
    """
    verdicts = [(run, verdict) for run in runs for verdict in run.verdicts]
    if not verdicts:
        return []
    oracles: dict[str, Oracle[Any] | Verdict] = {oracle.name: oracle for oracle in every_oracle()}
    by_name: dict[str, list[tuple[ReportedRun, Verdict]]] = defaultdict(list)
    for run, judged in verdicts:
        oracles.setdefault(judged.name, judged)
        by_name[judged.name].append((run, judged))
    return [_check(by_name[name], oracle) for name, oracle in oracles.items()]


def _check(found: Sequence[tuple[ReportedRun, Verdict]], oracle: Oracle[Any] | Verdict) -> Check:
    violated = [(run.label, verdict.first) for run, verdict in found if verdict.state == VIOLATED]
    return Check(
        name=oracle.name,
        sentence=oracle.sentence,
        held=sum(verdict.state == HELD for _, verdict in found),
        violated=tuple(label for label, _ in violated),
        first=violated[0][1] if violated else "",
        needs=oracle.needs,
    )


def verdict(study: StudyData) -> str:
    """How many experiments there are, have results, and are valid; the others by their state.

    And how many were rehearsed.
    """
    parts = [
        plural(len(study.runs), "experiment"),
        f"{len(study.complete):,} complete",
        f"{study.count(lambda run: run.valid):,} valid",
    ]
    states = Counter(run.status for run in study.runs if not run.complete)
    parts += [f"{count:,} {state}" for state, count in states.items()]
    parts += [f"{len(study.rehearsed):,} {NOT_MEASURED}"] if study.rehearsed else []
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
