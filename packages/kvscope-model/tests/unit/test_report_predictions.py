"""Measured runs as a calibrated cost model predicts them: from `kvscope calibrate` to the page."""

import json
import shutil
from html import unescape
from pathlib import Path

import pytest

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.cli.main import main
from kvscope.metrics.experiment import analyse
from kvscope.plan.experiment import dump
from kvscope.plan.grid import expand
from kvscope.plan.layers import SHIPPED_CONFIG
from kvscope.report import section
from kvscope.report.data import StudyData
from kvscope.report.figures.figure import Drawing
from kvscope.report.figures.registry import draw_figure
from kvscope.report.load import load
from kvscope.report.study import report
from kvscope.tables.runfile import file_records, read_run, write_run
from kvscope_model.calibration.prediction import FILE, Prediction, read_prediction
from kvscope_model.hardware import hardware as data
from kvscope_model.hardware.cost import PassCost
from kvscope_model.report.predictions import read_predictions
from tests.unit.report_fixture import Fake, write_experiment, write_study

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

(PLANNED,) = expand(None, ["model=tiny-llama", "device=cpu"], SHIPPED_CONFIG).experiments
TRUE = data.read("cpu").model_copy(update={"gemm_flops_per_s": 7e10, "layer_launch_s": 3e-4})
FITTED = [
    Fake({"batching.chunk_tokens": chunk}, run, repeats=1, stall=False)
    for chunk, run in ((256, "ample"), (64, "small chunks, ample"))
]
OTHER = Fake({"batching.chunk_tokens": 128}, "chunks, ample", repeats=2, stall=False)
OFF = 1.2  # decode passes of OTHER take so many times as long as by the model


def retime(run: Path, slower: float) -> None:
    """Give each pass the seconds that the hardware TRUE would take; decode passes `slower`."""
    (run / "experiment.yaml").write_text(dump(PLANNED.experiment), encoding="utf-8")
    cost = PassCost(TRUE, PLANNED.experiment.model, split_decode=True)
    steps = tables.read(tables.STEPS, run / "steps.parquet")
    batch = tables.read(tables.BATCH, run / "batch.parquet").groupby(["repeat", "step"])
    columns = ["scheduled_tokens", "context_tokens"]
    rows = {at: [*own[columns].itertuples(index=False, name=None)] for at, own in batch}
    steps["duration_s"] = [
        cost.rows_s(rows[repeat, step]) * (slower if phase == "decode" else 1)
        for repeat, step, phase in zip(steps["repeat"], steps["step"], steps["phase"], strict=True)
    ]
    tables.write(tables.STEPS, steps, run / "steps.parquet")
    write_run(run, read_run(run) | {"files": file_records(run)})
    analyse(run, run.parent.parent / "tables" / run.name)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory) -> Path:
    """Results of two runs that the model is fitted to, and of a third that it predicts."""
    results = tmp_path_factory.mktemp("results")
    runs = [write_experiment(fake, results) for fake in (*FITTED, OTHER)]
    for run, slower in zip(runs, [1.0, 1.0, OFF], strict=True):
        retime(run, slower)
    fitted, predicted = map(str, runs[:2]), str(runs[2])
    assert main(["calibrate", *fitted, "--predict", predicted, "--samples", "2"]) == 0
    return results


@pytest.fixture
def results(calibrated: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(calibrated, tmp_path / "results")


def runs_of(results: Path) -> list[Path]:
    return [results / "experiments" / fake.id for fake in (*FITTED, OTHER)]


def prediction_of(run: Path) -> Prediction:
    found = read_prediction(run)
    assert found is not None
    return found


def faults_of(results: Path) -> list[str]:
    return [*read_predictions(load([*map(str, runs_of(results))], results)).faults]


def measure_again(run: Path) -> None:
    """Another measurement with its metrics, as far as readers of the prediction can tell."""
    write_run(run, read_run(run) | {"timings_s": {"total": 2.0}})
    analyse(run, run.parent.parent / "tables" / run.name)


def test_passes_are_predicted_as_well_as_the_model_holds(calibrated: Path):
    *fitted, other = map(prediction_of, runs_of(calibrated))
    assert [one.fitted for one in (*fitted, other)] == [True, True, False]
    assert all(one.median_error < 0.01 for one in fitted)
    assert other.phases["decode"].median_error == pytest.approx(1 - 1 / OFF, abs=0.01)
    assert all(part.left_out is None for part in other.phases.values())
    assert all(part.left_out is not None for one in fitted for part in one.phases.values())


def test_a_prediction_has_every_pass_of_the_run(calibrated: Path):
    for run in runs_of(calibrated):
        steps = tables.read(tables.STEPS, run / "steps.parquet")
        found = prediction_of(run)
        assert found.passes == len(steps)
        assert found.measured_s == pytest.approx(steps["duration_s"].sum())
        assert found.measured_s == pytest.approx(sum(p.measured_s for p in found.phases.values()))
        counts = {phase: part.passes for phase, part in found.phases.items()}
        assert counts == steps["phase"].value_counts().to_dict()


@pytest.fixture
def few_figures(monkeypatch):
    """Reports draw but two figures: drawing all takes most of a test's time."""

    def few(study: StudyData) -> dict[str, Drawing]:
        drawn = {name: draw_figure(study, name) for name in ("throughput", "predictions")}
        return {name: drawing for name, drawing in drawn.items() if drawing}

    monkeypatch.setattr(section, "drawings", few)


@pytest.mark.usefixtures("few_figures")
def test_the_page_shows_the_predictions(calibrated: Path, tmp_path: Path):
    page = report([*map(str, runs_of(calibrated))], calibrated, tmp_path)
    html = unescape(page.read_text(encoding="utf-8"))
    assert '<section id="predictions">' in html
    assert "The model was not fitted to these runs." in html
    assert "gemm_flops_per_s" in html
    other = prediction_of(runs_of(calibrated)[2])
    assert f"{other.ratio:.3f}" in html
    assert html.count("left out: ") >= 2
    assert (tmp_path / "figures" / "predictions.pdf").is_file()


def test_the_dashed_lines_hold_nineteen_of_twenty_points(calibrated: Path):
    drawing = draw_figure(load([*map(str, runs_of(calibrated))], calibrated), "predictions")
    assert drawing is not None
    (view,) = drawing.views
    plots = [name for name in view.data if name.startswith("cell")]
    assert len(plots) == 2
    for name in plots:
        points, lines = view.data[name], view.data[name.replace("cell", "lines")]
        low, high = (lines[end].iloc[0] / lines["at"].iloc[0] for end in ("low", "high"))
        ratios = points["predicted_ms"] / points["measured_ms"]
        assert ratios.between(low, high).mean() == pytest.approx(0.95, abs=1 / len(ratios) + 0.01)


def test_a_study_without_predictions_has_no_such_figure(results: Path):
    for path in results.glob(f"tables/*/{FILE}"):
        path.unlink()
    study = load([*map(str, runs_of(results))], results)
    assert draw_figure(study, "predictions") is None
    assert read_predictions(study).faults == ()


@pytest.mark.usefixtures("few_figures")
def test_the_prediction_of_another_measurement_is_named_and_not_shown(
    results: Path, tmp_path: Path
):
    measure_again(runs_of(results)[2])
    (fault,) = faults_of(results)
    assert "another measurement" in fault
    assert "kvscope calibrate" in fault
    page = report([str(runs_of(results)[2])], results, tmp_path / "page")
    html = unescape(page.read_text(encoding="utf-8"))
    assert "another measurement" in html
    assert '<section id="predictions">' not in html


def test_predictions_of_a_model_are_stale_once_a_run_is_that_it_was_fitted_to(results: Path):
    measure_again(runs_of(results)[0])
    assert len(faults_of(results)) == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("median_error", "much"),
        ("median_error", float("inf")),
        ("passes", 0),
        ("schema", 2),
        ("run_sha256", "../../x"),
        ("phases", {}),
        ("phases", {"dreams": {}}),
        ("model", {"runs": {"0" * 64: "../.."}, "constants": {}, "samples": 2}),
    ],
)
def test_a_damaged_prediction_is_named_in_one_sentence(results: Path, key: str, value):
    path = results / "tables" / OTHER.id / FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(BadInput, match=FILE):
        read_prediction(runs_of(results)[2])
    assert len(faults_of(results)) == 1


def test_a_prediction_that_is_cut_is_named(results: Path):
    path = results / "tables" / OTHER.id / FILE
    path.write_bytes(path.read_bytes()[:100])
    (fault,) = faults_of(results)
    assert "not readable as JSON" in fault


def test_studies_are_calibrated_by_their_names(calibrated: Path, tmp_path: Path, capsys):
    planned = Fake({"batching.chunk_tokens": 80})
    own = write_study(tmp_path / "results", [*FITTED, planned], "fitted")
    write_study(own, [OTHER], "others")
    for run in (*runs_of(own), own / "experiments" / planned.id):
        shutil.rmtree(run)
    for name in ("experiments", "tables"):
        shutil.copytree(calibrated / name, own / name, dirs_exist_ok=True)
    words = ["fitted", "--predict", "others", "--results", str(own), "--samples", "2"]
    assert main(["calibrate", *words]) == 0
    assert "1 of 3 experiments of fitted are not complete" in capsys.readouterr().err
    by_name, by_directory = ([*map(prediction_of, runs_of(each))] for each in (own, calibrated))
    assert by_name == by_directory


def test_a_study_without_a_complete_run_is_named(results: Path, capsys):
    write_study(results, [OTHER], "others")
    shutil.rmtree(runs_of(results)[2])
    assert main(["calibrate", "others", "--results", str(results)]) == 2
    assert "no experiment of others is complete" in capsys.readouterr().err
    assert main(["calibrate", "unknown", "--results", str(results)]) == 2
    assert "'unknown' is neither a planned study (others in" in capsys.readouterr().err


def test_a_modeled_run_is_no_measurement_to_predict(results: Path, capsys):
    run = runs_of(results)[2]
    write_run(run, read_run(run) | {"time_source": "modeled"})
    fitted = map(str, runs_of(results)[:2])
    assert main(["calibrate", *fitted, "--predict", str(run), "--samples", "2"]) == 2
    assert "measured times" in capsys.readouterr().err


def test_runs_of_two_attention_kernels_are_not_of_one_fit(results: Path, capsys):
    run = runs_of(results)[2]
    (planned,) = expand(
        None, ["model=tiny-llama", "engine.attention=paged"], SHIPPED_CONFIG
    ).experiments
    (run / "experiment.yaml").write_text(dump(planned.experiment), encoding="utf-8")
    write_run(run, read_run(run) | {"files": file_records(run)})
    fitted = map(str, runs_of(results)[:2])
    assert main(["calibrate", *fitted, "--predict", str(run), "--samples", "2"]) == 2
    said = capsys.readouterr().err
    assert f"{run} has paged" in said
    assert "engine.attention=vllm and" in said


def test_runs_that_are_not_valid_are_named_with_their_reasons(results: Path, capsys):
    first, second, _ = runs_of(results)
    facts = read_run(first)
    write_run(first, facts | {"warmup": facts["warmup"] | {"passes": 0, "requests": 0}})
    assert main(["calibrate", str(first), str(second), "--samples", "2"]) == 0
    said = capsys.readouterr().err
    assert f"kvscope: {first} is not valid (" in said
    assert "no_warm_up" in said
