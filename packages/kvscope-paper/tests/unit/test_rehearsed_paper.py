"""Neither the paper's page nor `kvscope score` takes numbers of a rehearsed run."""

from pathlib import Path

import pytest

from kvscope.cli.main import main
from kvscope.report.load import load
from kvscope.tables.runfile import read_run, write_run
from kvscope_paper import page
from kvscope_paper.comparison import COMPARISON_FILE
from kvscope_paper.score.trace import COLUMNS
from tests.unit.report_fixture import Fake, write_study

pytestmark = pytest.mark.slow

FAKE = Fake({"cache.blocks": 64}, repeats=1, source="rehearsed")
WORDS = "is rehearsed, not measured: a CPU was in the place of its GPU"


@pytest.fixture(params=[True, False], ids=["labelled", "label deleted"])
def results(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_study(tmp_path, [FAKE], "paper")
    run = tmp_path / "experiments" / FAKE.id
    if not request.param:
        facts = read_run(run)
        del facts["time_source"]
        write_run(run, facts)
    return tmp_path


def test_the_page_of_the_paper_is_refused_and_an_earlier_one_retired(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = results / "studies" / "paper"
    for place in (home, home / "unfinished"):
        place.mkdir(exist_ok=True)
        (place / page.PAGE).write_text("of before")
    assert main(["report", "paper", "--results", str(results)]) == 2
    output = capsys.readouterr().err
    assert output.startswith("kvscope: paper.html: ")
    assert f"{FAKE.id} of study paper {WORDS}" in output
    assert not [*home.rglob(page.PAGE), *home.rglob(COMPARISON_FILE)]
    page.write_tables(load(["paper"], results), home)
    assert not (home / COMPARISON_FILE).exists()


def test_no_trace_is_scored_against_a_rehearsed_run(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, run = results / "trace.csv", results / "experiments" / FAKE.id
    trace.write_text(",".join(COLUMNS) + "\n")
    assert main(["score", str(trace), "--run", str(run)]) == 2
    assert f"score: {run} {WORDS}" in capsys.readouterr().err
