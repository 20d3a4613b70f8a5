"""The figures and the headline of every shipped study, on invented numbers for its experiments."""

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from kvscope import tables
from kvscope.metrics.estimates import ExperimentMetrics
from kvscope.metrics.registry import all_metrics
from kvscope.metrics.study import add_study_metrics
from kvscope.plan import documents, layers
from kvscope.plan.experiment import dump
from kvscope.plan.grid import PlannedExperiment, expand
from kvscope.report.data import FigureRequest, ReportedRun, StudyData
from kvscope.report.figures.registry import draw_figure, figures
from kvscope.report.findings import headline
from kvscope.report.render import svg
from kvscope.report.tables import experiments_table

from .marks import marks_of, own_figures

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

STUDIES = sorted(layers.options(layers.SHIPPED_CONFIG, "study"))
OVER_EXPERIMENTS = [name for name, figure in figures().items() if figure.lead]


def invented(number: int, planned: PlannedExperiment, directory: Path) -> ReportedRun:
    """A complete run with a number for every metric; a scarce cache preempts and costs time."""
    settings = documents.load_mapping(_written(planned, directory))
    scarce = "ample" not in planned.grid
    rows = []
    for place, metric in enumerate(all_metrics()):
        value = 10.0 + (place * 7 + number * 3) % 11
        if metric.name == "preemptions":
            value = 6.0 if scarce else 0.0
        rows.append((metric.name, value, value - 0.1, value + 0.1, metric.unit))
    frame = pd.DataFrame(rows, columns=["metric", "value", "ci_low", "ci_high", "unit"]).assign(
        experiment_id=planned.experiment.id, repeats_valid=5, valid=True, reasons="",
        time_source="measured", run_sha256="0" * 64,
    )  # fmt: skip
    return ReportedRun(
        planned.experiment.id,
        planned.label,
        planned.varied,
        directory,
        settings=settings,
        grid=planned.grid,
        metrics=frame[tables.METRICS.names].set_index("metric", drop=False),
    )


def _written(planned: PlannedExperiment, directory: Path) -> Path:
    path = directory / "experiment.yaml"
    path.write_text(dump(planned.experiment))
    return path


@pytest.fixture(scope="module", params=STUDIES)
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StudyData:
    """A shipped study whose every experiment has numbers, and no other records."""
    plan = expand(request.param, [], layers.SHIPPED_CONFIG)
    directory = tmp_path_factory.mktemp("run")
    runs = [invented(n, planned, directory) for n, planned in enumerate(plan.experiments)]
    extended = add_study_metrics(
        [ExperimentMetrics(run.settings, run.metrics) for run in runs if run.metrics is not None]
    )
    return StudyData(
        request.param,
        plan.title,
        plan.description,
        plan.varied_keys,
        tuple(replace(run, metrics=one) for run, one in zip(runs, extended, strict=True)),
        tuple(FigureRequest(name, axes) for name, axes in plan.figures.items()),
        compared=plan.compared,
    )


def test_every_figure_over_experiments_draws_every_metric_it_has(study: StudyData) -> None:
    drawn = {name: one for name in OVER_EXPERIMENTS if (one := draw_figure(study, name))}
    assert {"throughput", "latency", "utilization", "preemptions"} <= set(drawn)
    for name, drawing in drawn.items():
        for view in drawing.views:
            assert all(len(frame) for frame in view.data.values()), name
            assert len(view.data) == len(view.chart["concat"]), name
        assert marks_of(svg(drawing)), name


# `resume_time` and figures of other packages are of facts that these made-up runs do not have;
# `winners` has no lines but a map (test_report_winners.py).
DRAWN = own_figures() - {"resume_time", "winners"}


def test_its_declared_axes_place_its_experiments(study: StudyData) -> None:
    assert study.figures
    for asked in (figure for figure in study.figures if figure.name in DRAWN):
        for axes in asked.axes:
            alone = replace(study, figures=(replace(asked, axes=(axes,)),))
            drawing = draw_figure(alone, asked.name)
            assert drawing
            assert drawing.views[0].choice != ("experiment",), axes
            frames = drawing.views[0].data.values()
            assert any(frame["x"].nunique() > 1 for frame in frames), axes
            lines = [frame["colour"].nunique() for frame in frames]
            assert not axes.colour or max(lines) > 1, axes  # side by side they cannot be compared


def test_it_has_a_headline_with_a_number_and_a_chart(study: StudyData) -> None:
    found = headline(study)
    assert re.search(r"\d", found.sentence)
    assert found.sentence.endswith(".")
    assert found.drawing
    assert marks_of(svg(found.drawing))


def test_its_table_fits_on_a_screen_and_marks_the_best(study: StudyData) -> None:
    table = experiments_table(study)
    shown = [column for column in table.columns if not column.folded]
    assert len(shown) <= 14
    for place, column in enumerate(table.columns):
        cells = [table.cells[run.id][place] for run in study.runs]
        known = [cell.value for cell in cells if cell.value is not None]
        if column.better and len(known) > 1 and not column.folded:
            best = column.better * max(column.better * value for value in known)
            assert [cell.value for cell in cells if cell.best] == [best] * known.count(best)
        else:
            assert column.folded or not any(cell.best for cell in cells)
