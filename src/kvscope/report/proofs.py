"""Which experiments of a study must give the same tokens, and whether they do."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kvscope.analyse.outputs import DIFFER, OutputGroup, Outputs, compare_outputs, output_hashes
from kvscope.report.data import Run, StudyData
from kvscope.report.words import (
    plural,
)


def proofs(runs: Iterable[Run]) -> list[OutputGroup]:
    """Every group of complete experiments that must give the same tokens, by their ids."""
    return compare_outputs(
        {
            run.id: Outputs(
                run.settings,
                run.number("preemptions").value > 0,
                output_hashes(run.records.requests),
            )
            for run in runs
            if run.complete and run.settings
        }
    )


def invalidate_differing(runs: Sequence[Run]) -> list[Run]:
    """The runs, not valid where outputs differ that must be equal: which run errs is unknown."""
    wrong = {name: group for group in proofs(runs) if group.differing for name in group.names}
    return [_invalidate(run, wrong[run.id]) if run.id in wrong else run for run in runs]


def _invalidate(run: Run, group: OutputGroup) -> Run:
    assert run.metrics is not None
    names = [*run.reasons, DIFFER]
    detail = f"{group.differing} of {group.requests} requests, in {len(group.names)} experiments"
    metrics = run.metrics.assign(valid=False, reasons=";".join(names))
    return replace(run, metrics=metrics, doubts=(*run.doubts, f"{DIFFER} ({detail})"))


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
