"""Where a policy is slower: the parts of the time that it takes more, and the cause named."""

from pathlib import Path

import pandas as pd
import pytest

from kvscope import tables
from kvscope.plan import documents, layers
from kvscope.plan.experiment import dump
from kvscope.plan.grid import expand
from kvscope.plan.question import Question
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.overflow_losses import IDLE, LONGER, MORE, draw
from kvscope.report.render import svg

from .marks import marks_of
from .report_fixture import compared

BASE = {"makespan_s": 10.0, "forward_passes": 100.0, "throughput_tokens_per_s": 50.0}
# Of swap, by the oversubscription: seconds, passes, and seconds in which nothing runs.
OTHERS = {
    1.5: (12.0, 100.0, 2.0),
    2.0: (13.0, 128.0, 0.2),
    3.0: (20.0, 90.0, 1.0),
    4.0: (9.0, 90.0, 0.0),
}
CAUSE = {1.5: IDLE, 2.0: MORE, 3.0: LONGER}


def study_of(directory: Path, seeds: int) -> StudyData:
    """A study whose runs have these metrics, the same for each seed."""
    rooms = ",".join(map(str, OTHERS))
    words = [
        *("device=dry", "overflow=recompute,swap", f"cache.oversubscription={rooms}"),
        "workload.num_requests=128",
        f"seed={','.join(map(str, range(seeds)))}",
    ]
    plan = expand(None, words, layers.SHIPPED_CONFIG)
    runs = []
    for number, planned in enumerate(plan.experiments):
        values = dict(BASE)
        if planned.experiment.overflow.name == "swap":
            room = planned.varied["cache.oversubscription"]
            values["makespan_s"], values["forward_passes"], values["offload_idle_s"] = OTHERS[room]
            values["throughput_tokens_per_s"] *= BASE["makespan_s"] / values["makespan_s"]
        path = directory / f"{number}.yaml"
        path.write_text(dump(planned.experiment))
        frame = pd.DataFrame(
            [(name, value, value, value, "s") for name, value in values.items()],
            columns=["metric", "value", "ci_low", "ci_high", "unit"],
        ).assign(
            experiment_id=planned.experiment.id, repeats_valid=1, valid=True, reasons="",
            time_source="modeled", run_sha256="0" * 64,
        )  # fmt: skip
        runs.append(
            ReportedRun(
                planned.experiment.id,
                planned.label,
                planned.varied,
                directory,
                settings=documents.load_mapping(path),
                grid=planned.grid,
                metrics=frame[tables.METRICS.names].set_index("metric", drop=False),
            )
        )
    asked = Question(key="overflow", base="recompute")
    return StudyData(
        *("made up", "made up", "", plan.varied_keys, tuple(runs), (), asked),
        compared=compared(runs, asked),
    )


@pytest.mark.parametrize("seeds", [1, 3])
def test_parts_add_up_and_the_largest_is_the_cause(tmp_path: Path, seeds: int) -> None:
    drawing = draw(study_of(tmp_path, seeds), ())
    assert drawing is not None
    (parts,) = drawing.views[0].data.values()
    assert parts["where"].nunique() == len(CAUSE)  # the one that is faster loses nothing
    for room, cause in CAUSE.items():
        (where,) = {one for one in parts["where"] if str(room).removesuffix(".0") in one}
        own = parts[parts["where"] == where].set_index("cause")["share"]
        assert own.sum() == pytest.approx(OTHERS[room][0] / BASE["makespan_s"] - 1)
        assert own.idxmax() == cause
    assert marks_of(svg(drawing))
    (sentence,) = drawing.views[0].remarks
    assert sentence.startswith("swap has less throughput than recompute in 3 places: ")
    assert all(f"{cause} (1)" in sentence for cause in CAUSE.values())


def test_where_no_policy_loses_there_is_nothing_to_draw(tmp_path: Path) -> None:
    study = study_of(tmp_path, 1)
    faster = tuple(run for run in study.runs if run.varied["cache.oversubscription"] == 4.0)
    assert draw(study.part(faster), ()) is None
