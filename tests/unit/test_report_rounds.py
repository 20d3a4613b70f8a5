"""The report of experiments that were measured in rounds, beside other load."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kvscope import tables
from kvscope.cli.main import main
from kvscope.judge.records import read_records
from kvscope.report.check_run import check_run
from kvscope.report.findings import findings, headline
from kvscope.report.load import load
from kvscope.report.study import report

from .report_fixture import Fake, write_study
from .virtual_runs import virtual

pytestmark = pytest.mark.thorough

ROUNDS = 5
NAMES = ("ample", "recompute")  # of runs


def fakes(campaign: str, waiting: bool) -> list[Fake]:
    """A room for all and a quarter of it, and one more repeat of each under the profiler."""
    random = np.random.default_rng(0)
    return [
        Fake(
            {"cache.blocks": blocks}, run, stall=False, noise=0.004, repeats=ROUNDS,
            campaign=campaign, profiled=True,
            waiting=[*random.uniform(0, 0.2, ROUNDS), 0.0] if waiting else (),
        )
        for blocks, run in zip((48, 12), NAMES, strict=True)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a machine with other load."""
    results = write_study(tmp_path_factory.mktemp("loaded"), fakes("0123456789ab", waiting=True))
    report(["fake"], results, None)
    return results


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without other load."""
    return write_study(tmp_path_factory.mktemp("quiet"), fakes("ba9876543210", waiting=False))


def compared(results: Path) -> pd.Series:
    study = load(["fake"], results)
    base, other = (run.id for run in study.runs)
    found = study.estimates.ratio("throughput_tokens_per_s", other, base)
    return pd.Series(vars(found))


def test_the_headline_has_the_interval_of_the_ratio(loaded: Path) -> None:
    sentence = headline(load(["fake"], loaded)).sentence
    ratio = compared(loaded)
    half = re.fullmatch(
        rf"KV cache \d+ instead of \d+ blocks: {100 * (1 - ratio.value):.0f}\xa0% "
        r"\(±\xa0(\d|0\.\d)\) lower throughput\.",
        sentence,
    )
    assert half, sentence
    assert float(half[1]) == pytest.approx(100 * (ratio.high - ratio.low) / 2, rel=0.3)


def test_findings_have_intervals_and_no_word_on_rounds_that_are_not_shared(loaded: Path) -> None:
    found = findings(load(["fake"], loaded))
    row = next(o for o in found.differences if o.metric.name == "throughput_tokens_per_s")
    assert row.ratio
    ample, scarce = (virtual(name).tables["requests"]["finished_s"].max() for name in NAMES)
    assert row.ratio.low < ample / scarce < row.ratio.high
    assert found.caveats == ()


def test_under_load_the_answer_is_that_of_a_quiet_machine(loaded: Path, quiet: Path) -> None:
    one, other = compared(loaded), compared(quiet)
    assert (one.how, other.how) == ("adjusted", "paired")
    assert max(one.low, other.low) <= min(one.high, other.high)
    values = [
        [run.number("makespan_s").value for run in load(["fake"], results).runs]
        for results in (loaded, quiet)
    ]
    assert values[0] == pytest.approx(values[1], rel=0.05)
    assert [run.adjusted for run in load(["fake"], loaded).runs] == [True, True]


def test_a_profiled_repeat_is_in_no_metric(loaded: Path) -> None:
    for run in load(["fake"], loaded).runs:
        assert run.repeat_metrics is not None
        assert {*run.repeat_metrics["repeat"]} == {*range(ROUNDS)}
        records = read_records(run.directory)
        assert records.numbers == [*range(ROUNDS + 1)]
        assert records.timed == [*range(ROUNDS)]
        assert set(records.pass_durations.steps["repeat"]) == {*range(ROUNDS)}


def test_the_table_of_comparisons_has_the_ratios_of_the_page(loaded: Path) -> None:
    home = loaded / "studies" / "fake"
    found = tables.read(tables.COMPARISONS, home / "comparisons.parquet").set_index("metric")
    row, ratio = found.loc["throughput_tokens_per_s"], compared(loaded)
    assert (row["ratio"], row["low"], row["high"]) == (ratio.value, ratio.low, ratio.high)
    assert (row["key"], row["rounds"], row["how"]) == ("cache.blocks", ROUNDS, "adjusted")
    assert row["adjusted"]
    assert not found.loc["kv_block_utilization_mean", "adjusted"]
    printed = pd.read_csv(home / "comparisons.csv").set_index("metric")
    expected = pytest.approx(found["ratio"].to_dict(), nan_ok=True)
    assert printed["ratio"].to_dict() == expected
    assert pd.read_csv(home / "experiments.csv")["adjusted"].all()


def test_runs_and_their_tables_are_confirmed_and_changes_noticed(loaded: Path) -> None:
    run, *_ = (loaded / "experiments").iterdir()
    assert check_run(run) == []
    path = loaded / "tables" / run.name / tables.REPEAT_METRICS.file
    frame, content = tables.read(tables.REPEAT_METRICS, path), path.read_bytes()
    tables.write(tables.REPEAT_METRICS, frame.assign(waiting=0.0), path)
    assert any(path.name in complaint for complaint in check_run(run))
    path.write_bytes(content)


def test_two_runs_of_one_campaign_are_compared_over_its_rounds(
    loaded: Path, quiet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, other = (sorted((results / "experiments").iterdir()) for results in (loaded, quiet))
    for pair, apart in ((own, False), (other, False), ((own[0], other[1]), True)):
        assert main(["compare", *map(str, pair)]) == 0
        out = capsys.readouterr().out
        assert ("not measured in the same rounds" in out) == apart
