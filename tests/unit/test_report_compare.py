"""`kvscope compare`: a verdict on each metric of the experiments that two results have."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvscope.base.statistics import Interval
from kvscope.cli.main import main
from kvscope.metrics.study import column_measures
from kvscope.report.compare import Difference
from kvscope.report.comparisons import Comparison

from .report_fixture import Fake, write_study

FAKES = [
    Fake({"cache.blocks": 48}, stall=False, noise=0.002),
    Fake({"cache.blocks": 12}, "recompute", stall=False, noise=0.002),
]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One study in two results: the second machine is half as fast."""
    first, second = (tmp_path_factory.mktemp(name) for name in ("first", "second"))
    write_study(first, FAKES)
    write_study(second, [replace(fake, speed=0.5) for fake in FAKES])
    return first / "studies" / "fake", second / "studies" / "fake"


def compared(capsys: pytest.CaptureFixture[str], *words: str) -> dict[tuple[str, str], str]:
    assert main(["compare", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {(one["experiment"], one["metric"]): one["verdict"] for one in found}


def test_half_as_fast_is_worse_in_what_takes_time_and_the_same_in_what_does_not(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    forth, back = (compared(capsys, *map(str, pair)) for pair in (sides, sides[::-1]))
    assert {experiment for experiment, _ in forth} == {"KV cache 48 blocks", "KV cache 12 blocks"}
    for key, verdict in forth.items():
        timed = key[1] in ("throughput_tokens_per_s", "makespan_s", "ttft_mean_s", "itl_mean_s")
        if timed:
            assert (verdict, back[key]) == ("worse", "better"), key
        if key[1] == "preemptions":
            assert (verdict, back[key]) == ("no difference", "no difference")


def test_results_differ_in_nothing_from_themselves(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts = compared(capsys, str(sides[0]), str(sides[0])).values()
    assert set(verdicts) <= {"no difference", "not compared"}


def test_two_runs_are_compared_whatever_they_are_and_counted(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = sorted((sides[0].parent.parent / "experiments").iterdir())
    assert main(["compare", *map(str, runs)]) == 0
    *table, apart, counts = capsys.readouterr().out.splitlines()
    assert apart.startswith("not measured in the same rounds")
    assert any(line.strip().startswith("Throughput (tokens/s)") for line in table)
    assert "worse" in counts or "better" in counts


def test_nothing_in_common_is_bad_input(
    sides: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [Fake({"seed": 1}, "short"), Fake({"seed": 2}, "short")]
    write_study(tmp_path, others)
    assert main(["compare", str(sides[0]), str(tmp_path / "studies" / "fake")]) == 2
    assert "no experiment with results in common" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(1, 3, "worse"), (-3, -1, "better"), (-1, 1, "no difference")]
)
def test_a_difference_without_a_ratio_has_a_verdict(low: int, high: int, verdict: str) -> None:
    """Tables give numbers of numpy, whose comparisons cannot be subtracted."""
    zero = Interval(0.0, 0.0, 0.0)
    apart = Interval(np.float64(2), np.float64(low), np.float64(high))
    metric = next(one for one in column_measures() if one.name == "preemptions")
    assert Difference("x", metric, zero, zero, True, Comparison(None, apart)).verdict == verdict
