"""The smaller parts of the report: numbers in words, thinning, what varies, where points stand."""

import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.analyse.metrics import BY_NAME
from kvscope.report.arrangements import MOST_SERIES, arrangements
from kvscope.report.circumstances import circumstances, dates, shared
from kvscope.report.data import Number, Run, StudyData
from kvscope.report.differences import labels, shared_settings, varied_settings
from kvscope.report.thin import MERGE, thin, with_idle
from kvscope.report.words import MAIN, THROUGHPUT, estimate_text, number_text, plural


def steps(count, gap=0.0):
    frame = pd.DataFrame(dict.fromkeys(MERGE, 1), index=range(count))
    starts = [n * (0.005 + gap) for n in range(count)]
    return frame.assign(
        step=range(count), start_s=starts, duration_s=0.005, prefill_tokens=range(count),
        stalled=[n == 7 for n in range(count)],
    )  # fmt: skip


@pytest.mark.parametrize("shown", MAIN, ids=lambda shown: shown.metric)
def test_what_is_shown_is_a_metric_and_its_unit_is_right(shown):
    unit = BY_NAME[shown.metric].unit
    assert {("s", "s"): 1, ("s", "ms"): 1e3, ("share", "%"): 100}.get(
        (unit, shown.unit), 1
    ) == shown.scale


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Number(1234.56, 1214.56, 1254.56), ("1,235", "± 20")),
        (Number(0.123456, 0.122456, 0.124456), ("0.1235", "± 0.0010")),
        (Number(12.0, 12.0, 12.0), ("12", "± 0")),
        (Number(7.25, math.nan, math.nan), ("7.25", "")),
        (Number(math.nan, math.nan, math.nan), ("–", "")),
    ],
)
def test_an_estimate_is_told_to_the_places_its_interval_allows(number, text):
    assert estimate_text(number, THROUGHPUT) == text


@given(st.floats(min_value=1e-4, max_value=1e9))
def test_a_number_in_words_is_the_number_to_three_digits(value):
    assert float(number_text(value).replace(",", "")) == pytest.approx(value, rel=0.005)


def test_one_is_singular():
    assert [plural(1, "pass"), plural(2, "pass"), plural(1000, "request")] == [
        "1 pass",
        "2 passes",
        "1,000 requests",
    ]


@given(st.integers(1, 300), st.integers(1, 50))
def test_thinning_keeps_the_limit_the_time_and_the_tokens(count, limit):
    whole = steps(count)
    merged = thin(whole, limit)
    together = -(-count // limit)
    assert len(merged) <= limit
    assert merged["start_s"].iloc[0] == 0
    assert merged["end_s"].iloc[-1] == pytest.approx(whole["start_s"].iloc[-1] + 0.005)
    sizes = [min(together, count - n * together) for n in range(len(merged))]
    assert (merged["prefill_tokens"].to_numpy() * sizes).sum() == pytest.approx(
        whole["prefill_tokens"].sum()
    )
    assert merged["stalled"].any() == whole["stalled"].any()


def test_where_the_engine_was_idle_nothing_is_drawn():
    passes = with_idle(thin(steps(3, gap=0.5), 100))
    assert list(passes["kv_blocks_used"]) == [1, 0, 1, 0, 1]
    assert list(passes["start_s"]) == pytest.approx([0, 0.005, 0.505, 0.51, 1.01])


def test_passes_without_a_gap_stay_as_they_are():
    assert len(with_idle(thin(steps(20), 100))) == 20


def test_an_option_that_differs_stands_for_its_section():
    mixed = {"batching": {"name": "mixed"}, "seed": 1}
    chunked = {"batching": {"name": "chunked", "chunk_tokens": 64}, "seed": 1}
    assert varied_settings([mixed, chunked]) == [{"batching": "mixed"}, {"batching": "chunked"}]


def test_what_differs_beside_the_option_is_a_key_of_its_own():
    chunks = [{"batching": {"name": "chunked", "chunk_tokens": n}} for n in (64, 128)]
    varied = varied_settings([*chunks, {"batching": {"name": "mixed"}}])
    assert varied[1] == {"batching": "chunked", "batching.chunk_tokens": 128}
    assert varied[2] == {"batching": "mixed", "batching.chunk_tokens": None}


def test_runs_that_cannot_be_told_apart_by_settings_go_by_their_ids():
    assert labels([{}, {}], ["a", "b"]) == ["a", "b"]
    assert labels([{"seed": 1}, {"seed": 2}], ["a", "b"]) == ["seed=1", "seed=2"]


def test_shared_settings_are_those_that_all_have():
    settings = [{"seed": 1, "cache": {"blocks": 4}}, {"seed": 1, "cache": {"blocks": 5}}, {}]
    assert shared_settings(settings) == {"seed": 1}


def complete(**varied):
    name = "-".join(map(str, varied.values()))
    return Run(name, name, varied, Path(), Path(), {"status": "complete"})


def study(*runs):
    return StudyData("s", "S", "", tuple(dict.fromkeys(k for r in runs for k in r.varied)), runs)


def test_numbers_are_arranged_by_size_whatever_the_order_of_the_plan():
    first = arrangements(study(complete(n=64), complete(n=8), complete(n=128)))[0]
    assert (first.key, first.ticks, first.ordered) == ("n", ("8", "64", "128"), True)
    assert first.series[0].points == ((0, 1), (1, 0), (2, 2))


def test_the_other_settings_make_the_series():
    runs = [complete(n=n, policy=policy) for policy in ("a", "b") for n in (1, 2)]
    by_number = next(a for a in arrangements(study(*runs)) if a.key == "n")
    assert [series.name for series in by_number.series] == ["a", "b"]


def test_a_key_over_which_experiments_would_hide_each_other_is_not_offered():
    runs = [complete(n=1), complete(n=1), complete(n=2)]
    assert [a.key for a in arrangements(study(*runs))] == [""]


def test_more_series_than_can_be_told_apart_are_not_offered():
    runs = [complete(n=n, m=m) for n in (1, 2) for m in range(MOST_SERIES + 1)]
    assert [a.key for a in arrangements(study(*runs))] == ["m", ""]


def ran(label, start_ns, **hardware):
    facts = {
        "status": "complete",
        "clock": {"run_start_utc_ns": start_ns, "repeats": []},
        "hardware": {"hostname": "h", **hardware},
        "profiler": {"used": "none", "reason": None},
    }
    return Run(label, label, {}, Path(), Path(), facts, {"seed": 1})


def test_a_fact_that_differs_is_told_with_whom_it_holds_for():
    found = {
        c.name: c.values
        for c in circumstances(study(ran("a", 0, os="x"), ran("b", 0, os="y"), ran("c", 0, os="y")))
    }
    assert found["Machine"] == (("h", ""),)
    assert found["Operating system"] == (("x", "a"), ("y", "b; c"))
    assert found["Profiler"] == (("none: not asked for", ""),)


def test_dates_are_a_minute_or_a_span():
    minute = 60 * 10**9
    assert dates(study(ran("a", 0), ran("b", 30 * 10**9))) == "1970-01-01 00:00 UTC"
    assert dates(study(ran("a", 0), ran("b", minute))) == "1970-01-01 00:00 to 00:01 UTC"
    assert dates(study()) == ""


def test_settings_alike_are_listed_flat():
    assert shared(study(ran("a", 0), ran("b", 0))) == [("seed", "1")]
