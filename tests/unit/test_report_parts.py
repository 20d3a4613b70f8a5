"""The smaller parts of the report: numbers in words, thinning, what varies."""

import ast
import math
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.base.quantities import plural
from kvscope.base.statistics import Interval
from kvscope.metrics.measure import measures
from kvscope.metrics.registry import all_metrics
from kvscope.metrics.study import STUDY_METRICS, column_measures
from kvscope.plan.traits import (
    in_tokens,
    in_words,
    shared_settings,
    traits,
    value_of,
    varied_settings,
    without,
)
from kvscope.report.circumstances import circumstances, dates, shared
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures import pareto, step_timeline
from kvscope.report.figures.passes import MERGE, thin, with_idle
from kvscope.report.validity import summary
from kvscope.report.words import (
    estimate_text,
    number_text,
)
from tests.run_records import record_of

from .report_fixture import compared


def steps(count, gap=0.0):
    frame = pd.DataFrame(dict.fromkeys(MERGE, 1), index=range(count))
    starts = [n * (0.005 + gap) for n in range(count)]
    return frame.assign(
        step=range(count), start_s=starts, duration_s=0.005, prefill_tokens=range(count),
        stalled=[n == 7 for n in range(count)],
    )  # fmt: skip


@pytest.mark.parametrize("shown", column_measures(), ids=lambda shown: shown.name)
def test_what_is_shown_is_a_metric_and_its_unit_is_right(shown):
    metrics: list[Any] = [*all_metrics(), *STUDY_METRICS]
    unit = {metric.name: metric.unit for metric in metrics}[shown.name]
    scales = {("s", "s"): 1, ("s", "ms"): 1e3, ("share", "%"): 100, ("B", "MiB"): 1 / 2**20}
    assert scales.get((unit, shown.display_unit), 1) == shown.scale


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Interval(1234.56, 1214.56, 1254.56), ("1,235", "± 20")),
        (Interval(0.123456, 0.122456, 0.124456), ("0.1235", "± 0.0010")),
        (Interval(12.0, 12.0, 12.0), ("12", "± 0")),
        (Interval(7.25, math.nan, math.nan), ("7.25", "")),
        (Interval(math.nan, math.nan, math.nan), ("–", "")),
    ],
)
def test_an_estimate_is_told_to_the_places_its_interval_allows(number, text):
    assert estimate_text(number, measures()["throughput_tokens_per_s"]) == text


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


def test_merged_passes_end_where_the_engine_was_idle():
    whole = steps(25)
    whole.loc[7:, "start_s"] += 600.0
    merged = thin(whole, 5)
    assert list(merged["step"]) == [0, 5, 7, 12, 17, 22]
    assert list(merged["last_step"]) == [4, 6, 11, 16, 21, 24]
    drawn = with_idle(merged).set_index("start_s")
    nothing = drawn.loc[merged["end_s"].iloc[1]]
    assert nothing["end_s"] == merged["start_s"].iloc[2]
    assert (nothing[["kv_blocks_used", "requests", "waiting_requests", "decode_tokens"]] == 0).all()


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


def test_a_run_without_settings_differs_in_none():
    known = [{"seed": 1, "size": 8}, {"seed": 2, "size": 8}]
    assert varied_settings([{}, known[0]]) == [{}, {}]
    assert varied_settings([{}, *known]) == [{"seed": None}, {"seed": 1}, {"seed": 2}]


def test_runs_go_by_what_sets_them_apart_and_by_their_labels_where_nothing_does():
    runs = [complete(seed=1, size=8), complete(seed=1, size=8), complete(seed=2, size=8)]
    assert [*study(*runs).labels.values()] == ["1-8", "seed 2"]


def test_shared_settings_are_those_that_all_have():
    settings = [{"seed": 1, "cache": {"blocks": 4}}, {"seed": 1, "cache": {"blocks": 5}}, {}]
    assert shared_settings(settings) == {"seed": 1}


def complete(**varied):
    name = "-".join(map(str, varied.values()))
    return ReportedRun(name, name, varied, Path(), record_of())


def study(*runs):
    keys = tuple(dict.fromkeys(k for r in runs for k in r.varied))
    return StudyData("s", "S", "", keys, runs, compared=compared(runs))


def test_traits_tell_an_option_with_its_own_settings_and_give_them_back():
    (recompute, swap) = traits(
        [
            {"overflow": "recompute", "overflow.copies": None, "seed": 1},
            {"overflow": "swap", "overflow.copies": "per_block", "seed": 1},
        ]
    )
    assert in_words(recompute) == "recompute, seed 1"
    assert in_words(swap) == "swap (per block), seed 1"
    assert value_of(swap, "overflow.copies") == "per_block"
    assert value_of(recompute, "overflow.copies") is None
    assert in_words(without(swap, "overflow.copies")) == "swap, seed 1"
    assert without(swap, "overflow") == {"seed": 1}


def test_settings_that_every_option_has_stay_traits_of_their_own():
    rows = [{"workload": w, "workload.num_requests": n} for w in ("fixed", "zipf") for n in (8, 9)]
    assert traits(rows) == rows


def test_a_number_of_blocks_is_told_in_tokens_where_blocks_differ_in_size():
    rows = [
        {"cache.block_size": 16, "cache.blocks": 4},
        {"cache.block_size": 32, "cache.blocks": 4},
    ]
    assert [row["cache.tokens"] for row in in_tokens(rows)] == [64, 128]
    assert in_tokens([{"cache.blocks": 4}]) == [{"cache.blocks": 4}]


def ran(label, start_ns, more=MappingProxyType({}), **hardware):
    record = record_of(
        clock={"run_start_utc_ns": start_ns, "repeats": []},
        hardware={"hostname": "h", **hardware},
        profiler={"used": "none", "reason": None},
        **more,
    )
    return ReportedRun(label, label, {}, Path(), record, {"seed": 1})


def test_a_fact_that_differs_is_told_with_whom_it_holds_for():
    found = {
        c.name: c.values
        for c in circumstances(study(ran("a", 0, os="x"), ran("b", 0, os="y"), ran("c", 0, os="y")))
    }
    assert found["Machine"] == (("h", ""),)
    assert found["Operating system"] == (("x", "a"), ("y", "b; c"))
    assert found["Profiler"] == (("none: not requested", ""),)


def test_long_labels_are_counted_but_for_a_single_one():
    long = ["b" * 80, "c" * 80]
    ones = [ran("a" * 200, 0, os="x"), *(ran(label, 0, os="y") for label in long)]
    found = {c.name: c.values for c in circumstances(study(*ones))}
    assert found["Operating system"] == (("x", "a" * 200), ("y", "2 experiments"))


def told(run):
    return {c.name: c.values[0][0] for c in circumstances(study(run))}


@pytest.mark.parametrize(
    ("rounds", "words"),
    [(0, "none"), (1, "1 round of the whole workload; 2 shape classes not met before")],
)
def test_without_a_warm_up_no_shape_is_missed_by_it(rounds, words):
    one = ran("a", 0, {"warmup": {"uncovered_classes": ["x", "y"]}})
    one.settings["warmup"] = rounds
    assert told(one)["Warm-up"] == words


def test_the_rule_that_ended_the_repeats_is_told_with_their_number():
    rule = {"min": 3, "until": 0.05, "budget_s": 60, "measured": 4, "reached": True}
    one = ran("a", 0, {"repeats": rule})
    assert told(one)["Repeats"] == "4: at least 3, then until ± 5 % was known or 60 s were over"
    earlier = {key: value for key, value in rule.items() if key != "budget_s"} | {"max": 10}
    assert told(ran("a", 0, {"repeats": earlier}))["Repeats"].endswith("or 10 repeats were over")


def test_a_number_of_repeats_is_told_as_it_was_asked_for():
    rule = {"min": 3, "until": None, "measured": 3, "reached": None}
    one = replace(ran("a", 0, {"repeats": rule}), settings={"repeats": 3})
    assert told(one)["Repeats"] == "3"


def test_what_was_submitted_to_a_cluster_is_made_there():
    (*_, here), (*_, there) = (
        list(summary(replace(study(replace(ran("a", 0), status="not run")), planned=True), where))
        for where in (False, True)
    )
    assert here.startswith("Make what is missing: snakemake --profile profiles/local ")
    assert there.startswith("Make what is missing: snakemake --profile PROFILE-OF-THE-CLUSTER ")


def test_dates_are_a_minute_or_a_span():
    minute = 60 * 10**9
    assert dates(study(ran("a", 0), ran("b", 30 * 10**9))) == "1970-01-01 00:00 UTC"
    assert dates(study(ran("a", 0), ran("b", minute))) == "1970-01-01 00:00 to 00:01 UTC"
    assert dates(study()) == ""


def test_settings_alike_are_listed_flat():
    assert shared(study(ran("a", 0), ran("b", 0))) == [("seed", "1")]


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), min_size=1, max_size=20))
def test_names_beside_points_cover_no_point_and_no_other_name(centres):
    x, y = zip(*centres, strict=True)
    ends = {"x": x, "y": y, "x_high": max(x), "y_high": max(y)}
    points = pareto.with_names_beside(pd.DataFrame({"name": "4096", **ends}))
    across = points["x"] / max(x) * pareto.NARROWEST
    down = (1 - points["y"] / max(y)) * pareto.HEIGHT
    named = points[points["name"] != ""]
    anchors = list(zip(across + points["dx"], down + points["dy"], points["align"], strict=True))
    for n in named.index:
        anchor, height, align = anchors[n]
        span = {"left": (anchor, anchor + 20), "right": (anchor - 20, anchor)}[align]
        assert all(
            not span[0] <= a <= span[1] or abs(height - d) > 4
            for a, d in zip(across, down, strict=True)
        )
        for other in named.index[named.index != n]:
            apart_px = abs(height - anchors[other][1]) >= pareto.NAME_PX
            assert apart_px or anchors[other][0] != anchor or anchors[other][2] != align


def panel_metrics() -> set[str]:
    """The metrics that panels of figures name, those of the packages of this repository, too."""
    root = Path(__file__).parents[2]
    sources = [*root.glob("src/**/*.py"), *root.glob("packages/*/src/**/*.py")]
    calls = (node for path in sources for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    panels = (
        node.args[1]
        for node in calls
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] == "Panel"
        and len(node.args) > 1
    )
    parts = (part for panel in panels for part in ast.walk(panel))
    return {str(part.value) for part in parts if isinstance(part, ast.Constant)}


@pytest.mark.packages
def test_a_panel_names_metrics_that_some_package_has():
    """A panel leaves out the metrics of a package that is not installed; a misspelt one, too."""
    assert {"throughput_tokens_per_s", "kv_read_amplification"} < panel_metrics() < {*measures()}


@pytest.mark.parametrize("x", ["start_s", "step"])
def test_every_row_of_a_timeline_has_the_range_of_all_passes(x: str):
    """Rows have axes of their own, each as long as what is drawn in it."""
    *rows, strip = step_timeline._chart(x, True, True)["vconcat"]
    assert "data" not in strip
    assert all(any("data" not in layer for layer in row["layer"]) for row in rows)
