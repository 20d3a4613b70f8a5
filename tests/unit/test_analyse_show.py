"""Output of `kvscope analyse`: a table for people at 80 columns, JSON for programs."""

import json
import math
import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope import tables
from kvscope.base.layout import tables_directory
from kvscope.cli import main as cli
from kvscope.metrics.registry import all_metrics
from kvscope.metrics.show import OF_THE_HOST_POOL, print_table
from tests.unit.report_fixture import Fake, write_experiment

SIZES = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "GB": 1e9, "MB": 1e6, "kB": 1e3, "%": 0.01}
ROW = re.compile(r"(\w+) +(-?[\d,.]+)(?: ± ([\d,.]+))? +(\S+)(?: \(\d repeats?\))?")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that recomputes and a run that swaps, of two repeats only, so not valid."""
    results = tmp_path_factory.mktemp("made") / "results"
    fakes = (
        Fake({"overflow": "recompute"}, "recompute", repeats=2, warm=False),
        Fake({"overflow": "swap"}, "swap", repeats=2, warm=False),
    )
    return [write_experiment(fake, results) for fake in fakes]


def printed(capsys, *words) -> str:
    assert cli.main(["analyse", *map(str, words)]) == 0
    return capsys.readouterr().out


def shown(text: str) -> dict[str, tuple[float, float]]:
    """The rows of one printed table in the units of the metrics: value, half of the interval."""
    rows = {}
    for line in text.splitlines():
        if result := ROW.fullmatch(line):
            name, value, half, unit = result.groups()
            size = SIZES.get(unit, 1.0)
            numbers = [float((n or "nan").replace(",", "")) * size for n in (value, half)]
            rows[name] = (numbers[0], numbers[1])
    return rows


def metrics_of(run) -> pd.DataFrame:
    table = tables.read(tables.METRICS, tables_directory(run) / "metrics.parquet")
    return table.set_index("metric")


@pytest.mark.thorough
@pytest.mark.slow
def test_a_table_fits_into_80_columns_whatever_the_terminal_is(runs, capsys, monkeypatch):
    text = printed(capsys, *runs)
    assert max(map(len, text.splitlines())) <= 80
    for columns in ("20", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        assert printed(capsys, *runs) == text


def test_the_rows_are_the_metrics_that_apply(runs, capsys):
    recompute, swap = runs
    without, with_pool = shown(printed(capsys, recompute)), shown(printed(capsys, swap))
    of_swapping = {*OF_THE_HOST_POOL, "host_block_utilization_peak"}
    assert not of_swapping & without.keys()
    assert of_swapping <= with_pool.keys()
    for run, rows in ((recompute, without), (swap, with_pool)):
        values = metrics_of(run)["value"]
        assert rows.keys() - of_swapping == set(values.dropna().index) - of_swapping
        assert not any(name.startswith("kv_lag") for name in rows)  # nothing was traced


def test_the_numbers_are_those_of_the_table_to_four_digits(runs, capsys):
    for run in runs:
        metrics = metrics_of(run)
        for name, (value, half) in shown(printed(capsys, run)).items():
            row = metrics.loc[name]
            assert value == pytest.approx(row["value"], rel=1e-3), name
            assert half == pytest.approx(
                (row["ci_high"] - row["ci_low"]) / 2, rel=1e-3, abs=1e-3 * abs(row["value"])
            ), name


def test_every_table_says_which_run_it_is_and_whether_to_believe_it(runs, capsys):
    parts = printed(capsys, *runs).split("\n\n")
    assert len(parts) == len(runs)
    for run, part in zip(runs, parts, strict=True):
        name, verdict = part.splitlines()[:2]
        assert name == run.name
        assert verdict.startswith("measured, 2 repeats, not valid: ")
        assert "no_warm_up" in verdict


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_json_holds_the_whole_table_of_every_run(runs, capsys):
    objects = json.loads(printed(capsys, *runs, "--json"), parse_constant=refuse)
    assert [o["experiment_id"] for o in objects] == [run.name for run in runs]
    for run, found in zip(runs, objects, strict=True):
        metrics = metrics_of(run)
        assert found["metrics"].keys() == {metric.name for metric in all_metrics()}
        assert found["valid"] is False
        assert ";".join(found["reasons"]) == metrics["reasons"].iloc[0]
        assert found["time_source"] == "measured"
        for name, row in found["metrics"].items():
            assert row.keys() == {"value", "ci_low", "ci_high", "unit", "repeats_valid"}
            for key, value in row.items():
                known = metrics.loc[name, key]
                assert value == (known if known == known else None), (name, key)


NUMBERS = st.floats(1e-3, 1e6) | st.floats(-1e6, -1e-3) | st.just(0.0)


APPLICABLE = [metric for metric in all_metrics() if metric.name not in OF_THE_HOST_POOL]


@given(metric=st.sampled_from(APPLICABLE), value=NUMBERS, half=st.floats(0, 1) | st.just(math.nan))
def test_any_value_fits_and_can_be_read(metric, value, half):
    value *= 1e-6 if metric.unit == "s" else 1  # from a nanosecond
    low, high = (value + sign * half * abs(value) for sign in (-1, 1))
    count = 1 if math.isnan(half) else 3
    rows = [
        ("id", metric.name, value, low, high, metric.unit, count, True, "", "measured", "0" * 64),
        ("id", "other", 1.0, 1.0, 1.0, "s", 3, True, "", "measured", "0" * 64),
    ]
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("builtins.print", lambda text: lines.append(text))
        print_table(pd.DataFrame(rows, columns=tables.METRICS.names))
    assert max(map(len, lines)) <= 80
    result = shown("\n".join(lines))[metric.name]
    assert result[0] == pytest.approx(value, rel=1e-3, abs=1e-12)
    assert math.isnan(result[1]) == math.isnan(half)
