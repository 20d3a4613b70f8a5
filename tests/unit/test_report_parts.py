"""The smaller parts of the report: numbers in words, thinning, what varies, where points stand."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.analyse.metrics import METRICS
from kvscope.analyse.study_metrics import STUDY_METRICS
from kvscope.report.arrangements import (
    MOST_SERIES,
    arrangements,
    leading,
    views,
)
from kvscope.report.circumstances import circumstances, dates, shared
from kvscope.report.data import Number, Run, StudyData
from kvscope.report.differences import shared_settings, varied_settings
from kvscope.report.load import names
from kvscope.report.summary import summary
from kvscope.report.thin import MERGE, thin, with_idle
from kvscope.report.ticks import LETTER, positions
from kvscope.report.traits import in_tokens, in_words, traits, value_of, without
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
    unit = {metric.name: metric.unit for metric in (*METRICS, *STUDY_METRICS)}[shown.metric]
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


def test_runs_go_by_what_sets_them_apart_and_by_their_labels_where_nothing_does():
    assert names([complete(), complete()]) == ["", ""]
    runs = [complete(seed=1, size=8), complete(seed=1, size=8), complete(seed=2, size=8)]
    assert names(runs) == ["1-8", "1-8", "seed 2"]


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
    assert [series.name for series in by_number.series] == ["policy a", "policy b"]


def test_a_key_over_which_experiments_would_hide_each_other_is_not_offered():
    runs = [complete(n=1), complete(n=1), complete(n=2)]
    assert [a.key for a in arrangements(study(*runs))] == [""]


def test_more_series_than_can_be_told_apart_are_not_offered():
    runs = [complete(n=n, m=m) for n in (1, 2) for m in range(MOST_SERIES + 1)]
    assert [a.key for a in arrangements(study(*runs))] == ["m", ""]


def shown_on(arrangement):
    """Its lines: name, and the labels of their runs by tick."""
    return {
        series.name: [arrangement.ticks[place] for place, _ in series.points]
        for series in arrangement.series
    }


def policies(**more):
    yield complete(**more, overflow="recompute")
    for memory in ("pinned", "pageable"):
        yield complete(**more, overflow="swap", **{"overflow.host_memory": memory})


def padded(*runs):
    """The study of these runs, each with all keys, as a plan writes them."""
    keys = dict.fromkeys(key for one in runs for key in one.varied)
    return study(*(replace(one, varied={key: one.varied.get(key) for key in keys}) for one in runs))


def test_an_option_and_what_comes_with_it_name_a_series_together():
    by_size = arrangements(padded(*(run for n in (1, 2, 4) for run in policies(size=n))))[0]
    assert shown_on(by_size) == {
        "recompute": ["1", "2", "4"],
        "swap (pinned)": ["1", "2", "4"],
        "swap (pageable)": ["1", "2", "4"],
    }


def test_variants_of_an_option_are_ticks_in_the_order_of_their_numbers():
    runs = [complete(batching="chunked", **{"batching.chunk_tokens": n}) for n in (512, 64)]
    found = arrangements(padded(complete(batching="mixed"), *runs))
    by_policy = next(one for one in found if one.key == "batching")
    assert by_policy.ticks == ("mixed", "chunked (64 tokens)", "chunked (512 tokens)")
    by_chunk = next(one for one in found if one.key == "batching.chunk_tokens")
    assert shown_on(by_chunk) == {"": ["64", "512"]}
    assert leading(found) == [by_policy]


def test_grids_over_two_keys_are_two_charts_that_share_no_line():
    sizes = [run for n in (8, 16, 32) for run in policies(size=n, prompt=64)]
    prompts = [run for n in (32, 128) for run in policies(size=16, prompt=n)]
    both = padded(*sizes, *prompts)
    first, second = leading(arrangements(both))
    assert (first.key, first.fixed) == ("size", "prompt 64")
    assert (second.key, second.fixed) == ("prompt", "size 16")
    for one in (first, second):
        assert list(shown_on(one)) == ["recompute", "swap (pinned)", "swap (pageable)"]
    assert first.runs | second.runs == set(range(len(both.runs)))
    assert views(arrangements(both))[0].left_out == 0


def test_an_experiment_on_no_line_is_left_out_and_counted():
    alone = complete(size=7, other=1)
    both = padded(*(complete(size=n, other=0) for n in (1, 2, 4)), alone)
    (view, *_, everyone) = views(arrangements(both))
    assert [one.key for one in view.arrangements] == ["size"]
    assert (view.left_out, everyone.left_out) == (1, 0)


def linked(prompt, gib, *rest):
    return {"workload.prompt_tokens": prompt, "cache.gib": gib} | dict(rest)


def test_a_cache_that_grows_with_the_prompts_is_no_difference_of_its_own():
    runs = [run for n in (1, 2, 4) for run in policies(**linked(n, 3 * n))]
    (first,) = leading(arrangements(padded(*runs)))
    assert (first.key, first.fixed) == ("workload.prompt_tokens", "KV cache 3 to 12 GiB")
    assert list(shown_on(first)) == ["recompute", "swap (pinned)", "swap (pageable)"]
    assert all(ticks == ["1", "2", "4"] for ticks in shown_on(first).values())


@pytest.mark.parametrize("largest_has_ample", [True, False])
def test_twice_that_cache_is_a_line_beside_it_also_if_the_largest_lacks_it(largest_has_ample):
    scarce = [run for n in (1, 2, 4) for run in policies(**linked(n, n))]
    sizes = (1, 2, 4) if largest_has_ample else (1, 2)
    ample = [complete(**linked(n, 2 * n), overflow="recompute") for n in sizes]
    (first,) = leading(arrangements(padded(*scarce, *ample)))
    assert first.key == "workload.prompt_tokens"
    assert shown_on(first) == {
        "KV cache 1 to 4 GiB, recompute": ["1", "2", "4"],
        "KV cache 1 to 4 GiB, swap (pinned)": ["1", "2", "4"],
        "KV cache 1 to 4 GiB, swap (pageable)": ["1", "2", "4"],
        f"KV cache 2 to {2 * sizes[-1]} GiB, recompute": [str(n) for n in sizes],
    }


def test_other_values_at_one_place_alone_are_not_taken_for_linked_ones():
    lines = [complete(**{"workload.prompt_tokens": n, "cache.block_size": 16}) for n in (1, 2, 4)]
    beside = [complete(**{"workload.prompt_tokens": 2, "cache.block_size": n}) for n in (8, 32, 64)]
    prompts, sizes = leading(arrangements(study(*lines, *beside)))
    found = {one.key: (shown_on(one), one.fixed) for one in (prompts, sizes)}
    assert found == {
        "workload.prompt_tokens": ({"": ["1", "2", "4"]}, "block size 16"),
        "cache.block_size": ({"": ["8", "16", "32", "64"]}, "2 prompt tokens"),
    }


@given(
    st.sets(st.integers(1, 50), min_size=2, max_size=4),
    st.sets(st.integers(1, 50), min_size=2, max_size=3),
    st.sampled_from(["cache.gib", "engine.max_num_seqs", "workload.output_tokens"]),
)
def test_a_product_is_read_as_a_product(prompts, others, key):
    runs = [complete(**{"workload.prompt_tokens": n, key: m}) for n in prompts for m in others]
    along = next(a for a in arrangements(study(*runs)) if a.key == "workload.prompt_tokens")
    assert len(along.series) == len(others)
    for one in along.series:
        assert len({runs[number].varied[key] for _, number in one.points}) == 1
        assert len(one.points) == len(prompts)


def test_a_name_has_no_number_that_others_tell_as_well():
    runs = [
        complete(**{"workload.num_requests": n, "workload.max_tokens": 9 * n, "batching": policy})
        for n in (8, 9)
        for policy in ("mixed", "chunked")
    ]
    by_policy = next(a for a in arrangements(study(*runs)) if a.key == "batching")
    assert list(shown_on(by_policy)) == ["8 requests", "9 requests"]
    assert names(runs)[0] == "8 requests, mixed"


def test_a_cache_of_other_blocks_and_as_many_tokens_is_one_line():
    runs = [complete(**{"cache.block_size": n, "cache.blocks": 64 // n}) for n in (2, 4, 8)]
    assert shown_on(arrangements(study(*runs))[0]) == {"": ["2", "4", "8"]}


def test_a_line_of_which_one_failed_keeps_its_others():
    runs = [complete(n=n, policy=policy) for policy in ("a", "b") for n in (1, 2)]
    failed = replace(runs[1], status="failed")
    first = arrangements(study(runs[0], failed, *runs[2:]))[0]
    assert shown_on(first) == {"policy a": ["1"], "policy b": ["1", "2"]}


def test_of_some_experiments_others_are_shown_where_they_continue_a_line():
    runs = [complete(gib=gib, policy=policy) for policy in ("a", "b") for gib in (1, 2, 4)]
    roomy = [complete(gib=9, policy="c")]

    def wanted(run):
        return run.varied["gib"] < 4 and run not in roomy

    first = arrangements(study(*runs, *roomy), wanted)[0]
    assert shown_on(first) == {"policy a": ["1", "2", "4"], "policy b": ["1", "2", "4"]}


@given(st.sets(st.integers(0, 20), min_size=2, max_size=6))
def test_powers_of_two_stand_by_their_logarithm(exponents):
    powers = sorted(exponents)
    values = [2**n for n in powers]
    found = positions(values, [""] * len(values))
    scale = (len(powers) - 1) / (powers[-1] - powers[0])
    assert found == pytest.approx([scale * (n - powers[0]) for n in powers])


@given(st.sets(st.floats(min_value=-1e6, max_value=1e6), min_size=2, max_size=20))
def test_positions_rise_from_the_first_place_to_the_last_and_leave_room_for_labels(found):
    values = sorted(found)
    ticks = [str(value) for value in values]
    at = positions(values, ticks)
    gaps = [b - a for a, b in pairwise(at)]
    last = len(values) - 1
    assert (at[0], at[-1]) == pytest.approx((0, last))
    assert min(gaps) > 0
    needed = LETTER * (max(map(len, ticks)) + 1) * last
    assert at == tuple(range(len(values))) or min(gaps) > needed


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((6, 10, 14, 18, 22, 24), [(n - 6) / 18 * 5 for n in (6, 10, 14, 18, 22, 24)]),
        ((30, 60, 120, 240, 480), [0, 1, 2, 3, 4]),
        ((1000, 1001, 2000), [0, 1, 2]),
    ],
    ids=["to scale", "by their logarithm", "too close to each other"],
)
def test_other_numbers_stand_where_they_can_be_told_apart(values, expected):
    assert positions(values, [str(n) for n in values]) == pytest.approx(expected)


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


def told(run):
    return {c.name: c.values[0][0] for c in circumstances(study(run))}


def test_the_rule_that_ended_the_repeats_is_told_with_their_number():
    rule = {"min": 3, "max": 10, "until": 0.05, "measured": 4, "reached": True}
    one = ran("a", 0)
    one.facts["repeats"] = rule
    assert told(one)["Repeats"] == (
        "4: at least 3, then until the throughput's 95 % interval was within ± 5 % of its mean"
    )
    one.facts["repeats"] = rule | {"measured": 10, "reached": False}
    assert told(one)["Repeats"].endswith("of its mean, not reached after 10")


def test_a_number_of_repeats_is_told_as_it_was_asked_for():
    one = replace(ran("a", 0), settings={"repeats": 3})
    one.facts["repeats"] = {"min": 3, "max": 3, "until": None, "measured": 3, "reached": None}
    assert told(one)["Repeats"] == "3"


def test_disturbed_repeats_are_shown_apart():
    one = ran("a", 0)
    assert "Other load" not in told(one), "nothing was recorded"
    quiet = {"repeat": 0, "disturbed": False, "why": ""}
    one.facts["disturbance"] = [quiet]
    assert told(one)["Other load"] == "disturbed no repeat"
    busy = {"repeat": 1, "disturbed": True, "why": "other processes used 0.9 of 2 CPUs"}
    one.facts["disturbance"] = [quiet, busy]
    apart = "repeat 1: other processes used 0.9 of 2 CPUs"
    assert told(one)["Other load"] == f"{apart}; all in the metrics", "too few are undisturbed"
    one.facts["disturbance"] = [quiet, busy, quiet, quiet]
    assert told(one)["Other load"] == f"{apart}; not in the metrics"


def test_the_console_names_the_disturbed_repeats_of_a_valid_run():
    metrics = pd.DataFrame({"metric": ["makespan_s"], "valid": [True], "reasons": [""]})
    one = replace(ran("a", 0), metrics=metrics)
    assert len(list(summary(study(one)))) == 1
    one.facts["disturbance"] = [{"repeat": 2, "disturbed": True, "why": "another run"}]
    assert list(summary(study(one)))[1] == "  a: valid, without disturbed repeat 2"


def test_dates_are_a_minute_or_a_span():
    minute = 60 * 10**9
    assert dates(study(ran("a", 0), ran("b", 30 * 10**9))) == "1970-01-01 00:00 UTC"
    assert dates(study(ran("a", 0), ran("b", minute))) == "1970-01-01 00:00 to 00:01 UTC"
    assert dates(study()) == ""


def test_settings_alike_are_listed_flat():
    assert shared(study(ran("a", 0), ran("b", 0))) == [("seed", "1")]
