"""The report of a study: which files it writes, and that they say what the tables say."""

import math
import os
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.cli.main import main
from kvscope.metrics.experiment import analyse
from kvscope.metrics.study import STUDY_METRICS, column_measures
from kvscope.report import section
from kvscope.report.check_run import check_run
from kvscope.report.data import StudyData
from kvscope.report.figures.figure import Drawing
from kvscope.report.figures.registry import draw_figure
from kvscope.report.load import load
from kvscope.report.study import report
from kvscope.report.tables import study_metrics
from kvscope.tables import attempts, runfile

from .kv_access_fixture import collect_and_analyse
from .marks import own_figures, streams
from .report_fixture import Fake, write_experiment, write_study

pytestmark = pytest.mark.slow

ROOMY = Fake(
    {"cache.blocks": 48, "batching": "mixed"},
    "mixed, ample",
    stall=False,
)
SCARCE = Fake(
    {"cache.blocks": 12, "batching": "mixed"},
    "mixed",
    stall=False,
)
CHUNKED = Fake({"cache.blocks": 12, "batching": "chunked"}, "small chunks", stall=False)
BROKEN = Fake({"cache.blocks": 4, "batching": "mixed"}, status="failed", reason="no room")
WAITING = Fake({"cache.blocks": 2, "batching": None}, status=None)
COMPLETE = (ROOMY, SCARCE, CHUNKED)
ALL = (*COMPLETE, BROKEN, WAITING)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    write_study(results, ALL)
    collect_and_analyse(results / "experiments" / ROOMY.id, results / "tables" / ROOMY.id)
    report(["fake"], results, None)
    return results


@pytest.fixture(scope="module")
def out(results):
    return results / "studies" / "fake" / "unfinished"  # it has one that failed


def metrics_of(results, fake):
    return tables.read(tables.METRICS, results / "tables" / fake.id / "metrics.parquet")


def test_metrics_are_those_of_the_complete_runs_with_the_varied_keys_as_text(results, out):
    table = study_metrics(("cache.blocks", "batching"))
    found = tables.read(table, out / "metrics.parquet")
    own = found[~found["metric"].isin([metric.name for metric in STUDY_METRICS])]
    expected = pd.concat([metrics_of(results, fake) for fake in COMPLETE])
    pd.testing.assert_frame_equal(
        own[tables.METRICS.names].reset_index(drop=True), expected.reset_index(drop=True)
    )
    assert found.groupby("experiment_id")["cache.blocks"].first().to_dict() == {
        ROOMY.id: "48",
        SCARCE.id: "12",
        CHUNKED.id: "12",
    }


def test_the_metrics_of_the_study_are_among_them(results, out):
    found = tables.read(study_metrics(("cache.blocks", "batching")), out / "metrics.parquet")
    beyond = found[found["metric"] == "makespan_beyond_ample_s"].set_index("experiment_id")["value"]
    value = {
        fake.id: metrics_of(results, fake).set_index("metric").at["makespan_s", "value"]
        for fake in (ROOMY, SCARCE)
    }
    assert beyond[SCARCE.id] == pytest.approx(value[SCARCE.id] - value[ROOMY.id])
    assert math.isnan(beyond[ROOMY.id])  # it is the ample one
    assert math.isnan(beyond[CHUNKED.id])  # no ample one is chunked


def test_the_csv_has_every_experiment_once_and_the_numbers_of_the_tables(results, out):
    found = pd.read_csv(out / "experiments.csv").set_index("id")
    assert list(found.index) == [fake.id for fake in ALL]
    assert list(found["status"]) == [*["complete"] * 3, "failed", "not run"]
    for fake in COMPLETE:
        metrics = metrics_of(results, fake).set_index("metric")
        shown_here = [
            s for s in column_measures() if s.name in metrics.index and s.name in found.columns
        ]
        assert {s.name for s in column_measures() if not s.optional} <= {s.name for s in shown_here}
        for shown in shown_here:
            row = metrics.loc[shown.name]
            for suffix, column in (("", "value"), ("_ci_low", "ci_low"), ("_ci_high", "ci_high")):
                assert found.loc[fake.id, shown.name + suffix] == pytest.approx(
                    row[column], rel=1e-12, nan_ok=True
                )


def test_a_failed_experiment_has_its_reason_and_no_numbers_in_the_csv(out):
    found = pd.read_csv(out / "experiments.csv").set_index("id").loc[BROKEN.id]
    assert found["reasons"] == "no room"
    assert all(pd.isna(found[shown.name]) for shown in column_measures() if not shown.optional)


@pytest.mark.usefixtures("one_figure")
def test_what_preemptions_cost_is_a_column_only_where_there_are_any(results, out, tmp_path):
    cost = ["resume_overhead_as_published_s", "resume_overhead_net_s", "makespan_beyond_ample_s"]
    assert set(cost) <= set(pd.read_csv(out / "experiments.csv").columns)
    report([str(results / "experiments" / ROOMY.id)], results, tmp_path)
    assert not set(cost) & set(pd.read_csv(tmp_path / "experiments.csv").columns)
    assert "Resume overhead" not in (tmp_path / "report.html").read_text(encoding="utf-8")


# Of calibrated runs, of several overflow policies, of declared axes: test_report_predictions.py,
# test_report_figures.py, test_report_winners.py, test_report_losses.py.
ELSEWHERE = {"predictions", "overflow_causes", "overflow_losses", "winners", "kv_groups"}


@pytest.mark.parametrize("name", sorted(own_figures() - ELSEWHERE))
def test_every_figure_is_drawn_as_pdf_and_png(out, name):
    pdf = (out / "figures" / f"{name}.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 5000
    with Image.open(out / "figures" / f"{name}.png") as image:
        assert image.width >= 600
        assert len(set(image.convert("L").tobytes())) > 10


@pytest.mark.thorough
def test_the_same_tables_give_the_same_figures(results, out, tmp_path):
    again = report(["fake"], results, tmp_path).parent
    for path in (out / "figures").iterdir():
        one, other = path.read_bytes(), (again / "figures" / path.name).read_bytes()
        assert other == one if path.suffix == ".png" else streams(other) == streams(one)


def test_an_unknown_study_is_named_together_with_those_there_are(results):
    with pytest.raises(BadInput, match=r"'fakes' is neither a planned study \(fake in"):
        report(["fakes"], results, None)


@pytest.fixture
def one_figure(monkeypatch):
    """Reports draw but one figure: drawing all takes most of a test's time."""

    def one(study: StudyData) -> dict[str, Drawing]:
        drawing = draw_figure(study, "throughput")
        return {"throughput": drawing} if drawing else {}

    monkeypatch.setattr(section, "drawings", one)


def reported(capsys, results) -> tuple[int, str]:
    """Exit code and words of `kvscope report fake`."""
    code = main(["report", "fake", "--results", str(results)])
    said = capsys.readouterr()
    return code, said.out + said.err


def states(page) -> dict[str, str]:
    found = pd.read_csv(page.parent / "experiments.csv")
    return dict(zip(found["id"], found["status"], strict=True))


@pytest.mark.thorough
@pytest.mark.usefixtures("one_figure")
def test_a_study_that_is_not_finished_has_no_page_where_a_finished_one_has_it(tmp_path):
    write_study(tmp_path, [ROOMY, SCARCE])
    page = report(["fake"], tmp_path, None)
    home = tmp_path / "studies" / "fake"
    assert page == home / "report.html"
    write_study(tmp_path, [ROOMY, SCARCE, WAITING])
    unfinished = report(["fake"], tmp_path, None)
    assert unfinished == home / "unfinished" / "report.html"
    assert "This study is not finished" in unfinished.read_text()
    left = {path.name for path in home.iterdir()}
    assert left == {"manifest.json", "unfinished"}
    write_study(tmp_path, [ROOMY, SCARCE])
    assert report(["fake"], tmp_path, None).exists()
    assert not (home / "unfinished").exists()


@pytest.mark.thorough
@pytest.mark.usefixtures("one_figure")
def test_a_complete_run_without_metrics_is_named_with_what_to_do(tmp_path, capsys):
    write_study(tmp_path, [ROOMY, SCARCE])
    (tmp_path / "tables" / SCARCE.id / "metrics.parquet").unlink()
    code, said = reported(capsys, tmp_path)
    assert code == 1
    assert f"{SCARCE.id}/metrics.parquet: missing" in said
    (tmp_path / "tables" / SCARCE.id / "analyse.json").unlink()
    code, said = reported(capsys, tmp_path)
    assert code == 1
    assert re.search(f"make it with `kvscope analyse .*{SCARCE.id}`", said)
    page = tmp_path / "studies" / "fake" / "unfinished" / "report.html"
    assert states(page) == {ROOMY.id: "complete", SCARCE.id: "not analysed"}


@pytest.mark.thorough
@pytest.mark.usefixtures("one_figure")
def test_metrics_of_another_measurement_are_refused_by_name(tmp_path, capsys):
    write_study(tmp_path, [ROOMY, SCARCE])
    run = tmp_path / "experiments" / SCARCE.id
    runfile.write_run(run, runfile.read_run(run) | {"timings_s": {"total": 2.0}})
    code, said = reported(capsys, tmp_path)
    assert code == 1
    assert f"{SCARCE.id}/analyse.json was made from another measurement" in said
    page = tmp_path / "studies" / "fake" / "unfinished" / "report.html"
    assert states(page) == {ROOMY.id: "complete", SCARCE.id: "stale"}
    assert [c for c in check_run(run) if "another measurement" in c]


@pytest.mark.thorough
@pytest.mark.usefixtures("one_figure")
@pytest.mark.parametrize("name", ["steps.parquet", "workload.parquet", "experiment.yaml"])
def test_a_run_with_a_changed_file_is_refused_by_name(name, tmp_path, capsys):
    write_study(tmp_path, [ROOMY, SCARCE])
    file = tmp_path / "experiments" / SCARCE.id / name
    file.write_bytes(file.read_bytes().replace(b"e", b"f", 1))
    code, said = reported(capsys, tmp_path)
    assert code == 1
    assert f"{name}: its content differs from what was recorded" in said


@pytest.mark.usefixtures("one_figure")
def test_metrics_that_were_edited_are_refused_by_name(tmp_path, capsys):
    write_study(tmp_path, [ROOMY])
    path = tmp_path / "tables" / ROOMY.id / "metrics.parquet"
    frame = tables.read(tables.METRICS, path)
    tables.write(tables.METRICS, frame.assign(value=frame["value"] * 2), path)
    code, said = reported(capsys, tmp_path)
    assert code == 1
    assert "metrics.parquet" in said
    assert [c for c in check_run(tmp_path / "experiments" / ROOMY.id) if "metrics.parquet" in c]


@pytest.mark.usefixtures("one_figure")
def test_an_experiment_that_is_to_be_measured_again_leaves_the_study_unfinished(tmp_path):
    write_study(tmp_path, [ROOMY, SCARCE])
    attempts.request_again(tmp_path / "experiments" / SCARCE.id)
    page = report(["fake"], tmp_path, None)
    assert page.parent.name == "unfinished"
    assert "is to be measured again" in page.read_text()
    assert states(page)[SCARCE.id] == "complete"


@pytest.mark.usefixtures("one_figure")
def test_the_console_says_what_is_not_valid_and_why_and_what_to_do(tmp_path, capsys):
    write_study(tmp_path, [ROOMY, replace(SCARCE, warm=False)])
    code, said = reported(capsys, tmp_path)
    assert code == 0
    assert "fake: 2 experiments, 2 complete, 1 valid" in said
    assert "no_warm_up (nothing ran before the measured part)" in said
    assert "study=fake remeasure=invalid" in said


@pytest.mark.usefixtures("one_figure")
def test_of_planned_directories_those_that_did_not_run_are_shown_as_such(tmp_path, capsys):
    for fake in (ROOMY, WAITING):
        write_experiment(fake, tmp_path)
    runs = sorted(map(str, (tmp_path / "experiments").iterdir()))
    assert main(["report", *runs, "--out", str(tmp_path / "out")]) == 0
    assert "2 experiments, 1 complete, 1 valid, 1 not run" in capsys.readouterr().out
    found = states(tmp_path / "out" / "report.html")
    assert found == {ROOMY.id: "complete", WAITING.id: "not run"}


def test_several_studies_are_refused_as_such(tmp_path):
    for name in ("one", "two"):
        write_study(tmp_path, [WAITING], name=name)
    with pytest.raises(BadInput, match=r"one study can be given .* not several.*\(one two\)"):
        load(["one", "two"], tmp_path)
    run = str(tmp_path / "experiments" / WAITING.id)
    with pytest.raises(BadInput, match="one study can be given or runs' directories"):
        load([run, "two"], tmp_path)


@pytest.mark.parametrize("begun", [False, True])
def test_to_analyse_a_run_that_failed_says_why_it_failed(begun, tmp_path, capsys):
    """A run that is refused by its own process leaves tables without rows."""
    run = write_experiment(BROKEN, tmp_path)
    for table in tables.HOST_TABLES if begun else ():
        tables.write(table, table.empty(), run / table.file)
    assert main(["analyse", str(run)]) == 2
    said = capsys.readouterr().err
    assert said == f"kvscope: {run}: the run failed and left nothing to analyse (no room)\n"


@pytest.mark.parametrize("name", ["experiment.yaml", "log.txt", "run.json"])
def test_a_named_pipe_in_a_runs_directory_keeps_nobody_waiting(name, tmp_path):
    run = write_experiment(BROKEN, tmp_path)
    (run / name).unlink()
    os.mkfifo(run / name)
    assert load([str(run)], tmp_path).runs[0].status != "complete"


@pytest.mark.thorough
@pytest.mark.usefixtures("one_figure")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("swapping", "no experiment has the data it needs"),
        ("nonsense", "there are only "),
    ],
)
@pytest.mark.parametrize("runs", [[ROOMY], [ROOMY, WAITING]], ids=["finished", "unfinished"])
def test_a_figure_that_cannot_be_drawn_is_a_sentence_and_the_page_is_there(
    name, why, runs, tmp_path, capsys
):
    write_study(tmp_path, runs, figures=[{"name": one, "axes": []} for one in ("throughput", name)])
    code, said = reported(capsys, tmp_path)
    assert code == 0
    assert f"Figure '{name}' is not drawn: {why}" in said
    page = Path(said.splitlines()[0])
    assert f"Figure '{name}' is not drawn: {why}" in unescape(page.read_text())
    assert "'throughput' is not drawn" not in said
    assert (page.parent / "figures" / "throughput.pdf").exists()


@pytest.mark.usefixtures("one_figure")
def test_a_directory_is_told_from_a_study_of_the_same_name(tmp_path, monkeypatch):
    write_study(tmp_path / "results", [ROOMY, SCARCE], name="mine")
    write_experiment(CHUNKED, tmp_path)
    (tmp_path / "experiments" / CHUNKED.id).rename(tmp_path / "mine")
    analyse(tmp_path / "mine", tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert len(load(["mine"], Path("results")).runs) == 2
    assert [run.id for run in load(["./mine"], Path("results")).runs] == [CHUNKED.id]


@pytest.mark.usefixtures("one_figure")
def test_runs_given_by_directories_are_compared_by_the_settings_that_differ(results, tmp_path):
    runs = [str(results / "experiments" / fake.id) for fake in (ROOMY, SCARCE)]
    page = report(runs, results, tmp_path)
    assert page == tmp_path / "report.html"
    found = pd.read_csv(tmp_path / "experiments.csv")
    assert list(found["cache.blocks"]) == [48, 12]
    assert list(found["label"]) == ["KV cache 48 blocks", "KV cache 12 blocks"]


@pytest.mark.usefixtures("one_figure")
def test_one_run_is_a_report_of_its_own(results, tmp_path):
    page = report([str(results / "experiments" / ROOMY.id)], tmp_path, None)
    assert page == tmp_path / "studies" / ROOMY.id / "report.html"
    assert ROOMY.id in page.read_text()


def test_a_directory_that_holds_no_run_is_refused(results):
    with pytest.raises(BadInput, match=r"holds neither run\.json nor experiment\.yaml"):
        report([str(results / "studies")], results, None)


def test_a_study_of_which_nothing_ran_has_a_page(tmp_path):
    page = report(["fake"], write_study(tmp_path, [WAITING]), None)
    assert "1 experiment, 0 complete" in page.read_text()
    assert tables.read(
        study_metrics(("cache.blocks", "batching")), page.parent / "metrics.parquet"
    ).empty


@pytest.mark.usefixtures("one_figure")
def test_the_command_prints_the_page(results, tmp_path, capsys):
    assert main(["report", "fake", "--results", str(results), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out.splitlines()[0]
    assert printed == str(tmp_path / "unfinished" / "report.html")


def test_every_study_table_column_states_its_meaning():
    schema = study_metrics(("cache.blocks",)).schema
    assert (
        schema.field("cache.blocks").metadata[b"meaning"] == b"value of cache.blocks; null if none"
    )


@pytest.mark.usefixtures("one_figure")
def test_a_damaged_table_is_named(tmp_path):
    write_experiment(ROOMY, tmp_path)
    run = tmp_path / "experiments" / ROOMY.id
    (run / "steps.parquet").write_bytes(b"PAR1")
    page = report([str(run)], tmp_path, None)
    assert "steps.parquet: 4 bytes" in page.read_text()
