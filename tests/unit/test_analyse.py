"""Metrics against arithmetic done by hand, intervals against their definition."""

import math
import statistics
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope import tables
from kvscope.base import plugins
from kvscope.base.errors import BadInput
from kvscope.base.statistics import coefficient_of_variation, estimate
from kvscope.judge import validity
from kvscope.judge.reason import Reason
from kvscope.judge.records import Records
from kvscope.metrics import experiment, metric
from kvscope.metrics.circumstances import find_circumstances
from kvscope.metrics.experiment import metrics_of, repeat_metrics
from kvscope.metrics.metric import Metric
from kvscope.metrics.registry import metrics_by_name
from kvscope.tables.stalls import find_stalls
from kvscope.tables.verdict import HELD, VIOLATED, Verdict
from tests.run_records import facts_of, record_of

BLOCK_SIZE = 16
FACTS = facts_of(time_source="measured", engine={"block_size": BLOCK_SIZE})


def frame(table: tables.Table, rows: list[dict]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=table.names)


def two_requests(repeat: int = 0, stretch: float = 1.0) -> Records:
    """Two requests of 10 + 3 and 20 + 2 tokens; the second is preempted once and recomputed.

    pass  0: both prompts          1: both decode     2: a alone (b preempted)   3: b recomputed
    time  0.0–0.4                  0.5–0.6            0.6–0.7                    0.8–1.0
    """
    t = stretch
    shared = {"repeat": repeat, "kv_blocks_total": 4, "host_blocks_total": 0, "stalled": False}
    columns = (
        *("step", "phase", "start_s", "duration_s", "prefill_tokens", "decode_tokens"),
        *("recomputed_tokens", "sampled_tokens", "kv_blocks_used", "kv_tokens_used"),
        *("preempted_requests", "resumed_requests"),
    )
    passes = [
        (0, "prefill", 0.0, 0.4 * t, 30, 0, 0, 2, 3, 30, 0, 0),
        (1, "decode", 0.5 * t, 0.1 * t, 0, 1, 0, 1, 3, 31, 0, 0),
        (2, "decode", 0.6 * t, 0.1 * t, 0, 1, 0, 1, 1, 12, 1, 0),
        (3, "prefill", 0.8 * t, 0.2 * t, 21, 0, 20, 1, 2, 21, 0, 1),
    ]
    steps: list[dict[str, Any]] = [shared | dict(zip(columns, row, strict=True)) for row in passes]
    for row in steps:
        row["scheduled_tokens"] = row["prefill_tokens"] + row["decode_tokens"]
    request = {"repeat": repeat, "aborted": False, "arrival_s": 0.0, "first_token_s": 0.4 * t}
    requests = [
        request
        | {"request_id": "a", "prompt_tokens": 10, "output_tokens": 3, "finished_s": 0.7 * t},
        request
        | {"request_id": "b", "prompt_tokens": 20, "output_tokens": 2, "finished_s": 1.0 * t},
    ]
    for row in requests:
        row["output_sha256"] = row["request_id"]
    of_batch = ("request_id", "step", "context_tokens", "scheduled_tokens", "recomputed_tokens")
    given = [("a", 0, 0, 10, 0), ("b", 0, 0, 20, 0), ("a", 1, 10, 1, 0), ("a", 2, 11, 1, 0)]
    given += [("b", 3, 0, 21, 20)]
    batch = [
        {"repeat": repeat, "sampled_tokens": 1} | dict(zip(of_batch, row, strict=True))
        for row in given
    ]
    preemption = {"repeat": repeat, "request_id": "b", "policy": "recompute"}
    preemption |= {"tokens": 20, "refused": False}
    preemptions = [
        preemption | {"step": 2, "event": "preempt"},
        preemption | {"step": 3, "event": "resume", "wait_s": 0.2 * t, "recomputed_tokens": 20},
    ]
    workload = [{"request_id": "a", "output_tokens": 3}, {"request_id": "b", "output_tokens": 2}]
    return Records(
        Path(),
        facts=FACTS,
        workload=frame(tables.WORKLOAD, workload),
        requests=frame(tables.REQUESTS, requests),
        steps=frame(tables.STEPS, steps),
        batch=frame(tables.BATCH, batch),
        preemptions=frame(tables.PREEMPTIONS, preemptions),
        transfers=tables.TRANSFERS.empty(),
    )


def repeated(*stretches: float) -> Records:
    parts = [two_requests(n, stretch) for n, stretch in enumerate(stretches)]
    joined = {
        name: pd.concat([getattr(p, name) for p in parts], ignore_index=True)
        for name in ("requests", "steps", "batch", "preemptions")
    }
    return parts[0].variant(**joined)


BY_HAND = {
    "makespan_s": 1.0,
    "throughput_tokens_per_s": 35.0,
    "throughput_without_stalls_tokens_per_s": 35.0,
    "output_throughput_tokens_per_s": 5.0,
    "prefill_throughput_tokens_per_s": 51 / 0.6,
    "decode_throughput_tokens_per_s": 2 / 0.2,
    "ttft_mean_s": 0.4,
    "ttft_p99_s": 0.4,
    # a: 0.4 → 0.6 → 0.7; b: 0.4 → 1.0
    "itl_mean_s": (0.2 + 0.1 + 0.6) / 3,
    "itl_p50_s": 0.2,
    "latency_mean_s": 0.85,
    "forward_passes": 4,
    "kv_block_utilization_mean": (3 * 0.4 + 3 * 0.1 + 1 * 0.1 + 2 * 0.2) / 4 / 0.8,
    "kv_block_utilization_peak": 0.75,
    "kv_token_utilization_mean": (30 * 0.4 + 31 * 0.1 + 12 * 0.1 + 21 * 0.2) / 64 / 0.8,
    "preemptions": 1,
    "recomputed_tokens": 20,
    "preemption_wait_mean_s": 0.2,
    # The pass that recomputes b: whole, and 20 of its 21 tokens.
    "resume_overhead_gross_s": 0.2,
    "resume_overhead_as_published_s": 0.2,
    "resume_overhead_net_s": 0.2 * 20 / 21,
    "swap_out_s": 0,
    "swap_in_s": 0,
    "swapped_bytes": 0,
    "recompute_fallbacks": 0,
    "aborted_requests": 0,
    "stalled_passes": 0,
    "stall_time_s": 0,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_metric_equals_its_value_by_hand(name):
    assert metrics_by_name()[name].of(two_requests()) == pytest.approx(BY_HAND[name])


def test_a_metric_that_is_not_defined_has_no_value():
    assert math.isnan(metrics_by_name()["mixed_throughput_tokens_per_s"].of(two_requests()))


def requests_of(**columns) -> Records:
    """Requests with these columns, served to their end; 10 tokens asked and 5 given, by default."""
    rows = pd.DataFrame({"prompt_tokens": 10, "output_tokens": 5, "aborted": False} | columns)
    rows = rows.reindex(columns=tables.REQUESTS.names)
    return two_requests().variant(requests=rows)


@pytest.mark.parametrize(("name", "times"), [("ttft", 1), ("latency", 2)])
def test_percentiles_of_requests_are_those_of_a_hundred_and_one_values(name, times):
    seconds = np.random.default_rng(0).permutation(101).astype(float)
    arrival = 7 + np.arange(101.0)
    records = requests_of(
        arrival_s=arrival, first_token_s=arrival + seconds, finished_s=arrival + 2 * seconds
    )
    result = {of: metrics_by_name()[f"{name}_{of}_s"].of(records) for of in ("mean", "p50", "p99")}
    assert result == pytest.approx({"mean": 50 * times, "p50": 50 * times, "p99": 99 * times})


def test_percentiles_of_the_time_between_tokens_are_those_of_a_hundred_and_one_gaps():
    # Half a second of every pass is its own; the gap is between the passes' ends. Skewed: n².
    gaps = np.random.default_rng(0).permutation(101).astype(float) ** 2
    ends = 1000 + np.concatenate([[0.0], np.cumsum(gaps)])
    steps = pd.DataFrame({"step": range(102), "start_s": ends - 0.5, "duration_s": 0.5})
    batch = pd.DataFrame({"step": range(102), "request_id": "a", "sampled_tokens": 1})
    records = two_requests().variant(steps=steps, batch=batch)
    result = {of: metrics_by_name()[f"itl_{of}_s"].of(records) for of in ("mean", "p50", "p99")}
    assert result == pytest.approx({"mean": 100 * 201 / 6, "p50": 50**2, "p99": 99**2})


def test_the_makespan_is_from_the_first_arrival_to_the_last_end_whoever_has_them():
    # The second arrives first, and the first ends last.
    records = requests_of(
        arrival_s=[3.5, 2.0, 6.0], first_token_s=[4.0, 4.5, 6.5], finished_s=[12.0, 5.0, 8.0]
    )
    assert metrics_by_name()["makespan_s"].of(records) == 10.0
    assert metrics_by_name()["throughput_tokens_per_s"].of(records) == 4.5
    assert metrics_by_name()["output_throughput_tokens_per_s"].of(records) == 1.5
    assert metrics_by_name()["ttft_mean_s"].of(records) == pytest.approx((0.5 + 2.5 + 0.5) / 3)


def test_a_request_that_was_given_up_counts_in_the_makespan_and_in_no_latency():
    records = requests_of(
        arrival_s=[0.0, 0.0], first_token_s=[1.0, 3.0], finished_s=[2.0, 8.0], aborted=[False, True]
    )
    result = {
        name: metrics_by_name()[name].of(records) for name in ("ttft_mean_s", "latency_mean_s")
    }
    assert result == {"ttft_mean_s": 1.0, "latency_mean_s": 2.0}
    assert metrics_by_name()["throughput_tokens_per_s"].of(records) == 15 / 8


def test_mixed_throughput_counts_prefill_and_decode_and_other_passes_count_not():
    rows = [("mixed", 30, 5, 0.5), ("mixed", 10, 7, 0.25), ("prefill", 99, 0, 1.0)]
    rows += [("decode", 0, 9, 2.0)]
    steps = pd.DataFrame(rows, columns=["phase", "prefill_tokens", "decode_tokens", "duration_s"])
    steps["scheduled_tokens"] = steps["prefill_tokens"] + steps["decode_tokens"]
    records = two_requests().variant(steps=steps)
    assert metrics_by_name()["mixed_throughput_tokens_per_s"].of(records) == pytest.approx(
        52 / 0.75
    )
    assert metrics_by_name()["prefill_throughput_tokens_per_s"].of(records) == 99
    assert metrics_by_name()["decode_throughput_tokens_per_s"].of(records) == 4.5


def test_the_wait_of_a_preemption_is_the_mean_of_all_until_they_resume():
    waits = [None, 0.1, None, 0.2, None, 0.9, None]  # the last one never resumed
    event = ["preempt" if wait is None else "resume" for wait in waits]
    rows = pd.DataFrame({"event": event, "wait_s": pd.Series(waits, dtype=float)})
    records = two_requests().variant(preemptions=rows)
    assert metrics_by_name()["preemption_wait_mean_s"].of(records) == pytest.approx(0.4)
    assert metrics_by_name()["preemptions"].of(records) == 4


def of_one_kind(*repeats: list[float]) -> Records:
    """A run of passes all alike but for their durations, one after the other; stalls flagged."""
    parts = []
    for number, durations in enumerate(repeats):
        ends = np.cumsum(durations)
        part = pd.DataFrame({"duration_s": durations, "start_s": ends - durations})
        parts.append(part.assign(repeat=number, step=range(len(durations))))
    steps = pd.concat(parts, ignore_index=True).assign(phase="decode", decode_tokens=8)
    steps = steps.assign(kv_tokens_used=99, stalled=False)
    steps[["prefill_tokens", "preempted_requests", "resumed_requests"]] = 0
    steps["stalled"] = find_stalls(steps)
    finished = steps["start_s"] + steps["duration_s"]
    served = pd.DataFrame(
        {"repeat": steps["repeat"], "arrival_s": 0.0, "finished_s": finished, "aborted": False}
    )
    served = served.assign(prompt_tokens=1, output_tokens=1)
    return two_requests().variant(steps=steps, requests=served)


def lost_s(records: Records) -> list[float]:
    return [metrics_by_name()["stall_time_s"].of(repeat) for repeat in records.repeats()]


def test_a_stall_counts_in_the_throughput_but_not_in_that_without_stalls():
    records = of_one_kind([0.01] * 99 + [0.51])
    assert lost_s(records) == pytest.approx([0.5])
    assert metrics_by_name()["throughput_tokens_per_s"].of(records) == pytest.approx(200 / 1.5)
    without = metrics_by_name()["throughput_without_stalls_tokens_per_s"].of(records)
    assert without == pytest.approx(200 / 1.0)


def test_a_repeat_that_is_slow_as_a_whole_lost_time_against_the_others():
    records = of_one_kind(*[[0.01] * 24] * 3, [0.05] * 24)
    assert metrics_by_name()["stalled_passes"].of(list(records.repeats())[3]) == 24
    assert lost_s(records) == pytest.approx([0, 0, 0, 24 * 0.04])
    assert told(records)["stalled"] == "repeat 3: 80 % of the makespan"


@pytest.mark.slow
@given(st.lists(st.lists(st.floats(0.01, 1), min_size=1, max_size=30), min_size=1, max_size=4))
def test_the_time_lost_is_what_a_walk_over_the_stalled_passes_adds_up(repeats):
    records = of_one_kind(*repeats)
    usual = statistics.median(second for repeat in repeats for second in repeat)
    stalls = records.steps[records.steps["stalled"]]
    expected = [
        sum(s - usual for s in stalls.loc[stalls["repeat"] == number, "duration_s"])
        for number in range(len(repeats))
    ]
    assert lost_s(records) == pytest.approx(expected)


@pytest.mark.parametrize(("lost", "found"), [(0.08, True), (0.03, False)])
def test_a_repeat_that_lost_more_than_a_twentieth_is_stalled(lost, found):
    # 100 passes of 10 ms, one of them longer: `lost` is its share of the whole.
    stall = 0.01 + lost / (1 - lost)
    records = of_one_kind([0.01] * 100, [0.01] * 99 + [stall], [0.01] * 100)
    assert ("stalled" in told(records)) is found


@pytest.mark.parametrize(("spread", "found"), [(0.15, True), (0.07, False)])
def test_makespans_that_vary_by_more_than_a_tenth_are_unstable(spread, found):
    # The standard deviation of 1 - x, 1 and 1 + x is x, their mean is 1.
    assert ("unstable" in told(repeated(1 - spread, 1, 1 + spread))) is found


def told(records: Records) -> dict[str, str]:
    """The circumstances of a run, by name."""
    return {found.name: found.detail for found in find_circumstances(records)}


def test_a_metric_of_repeats_is_their_mean_with_its_interval():
    records = repeated(1.0, 1.1, 1.2)
    repeats = repeat_metrics(records, "0" * 64)
    result = metrics_of(records, repeats, [], "0" * 64).set_index("metric")
    assert result.loc["makespan_s", "value"] == pytest.approx(1.1)
    # t(0.975, 2) = 4.3027, s = 0.1
    half = 4.3027 * 0.1 / math.sqrt(3)
    assert result.loc["makespan_s", "ci_low"] == pytest.approx(1.1 - half, abs=1e-4)
    assert result.loc["makespan_s", "ci_high"] == pytest.approx(1.1 + half, abs=1e-4)
    assert result["repeats_valid"].loc["makespan_s"] == 3


def names(reasons: list[Reason]) -> list[str]:
    return [reason.name for reason in reasons]


def given_up_after_two_tokens(records: Records) -> Records:
    """The run of this module, but request a is given up before its last token, at 0.65 s."""
    requests, steps, batch = records.requests.copy(), records.steps.copy(), records.batch
    is_a = requests["request_id"] == "a"
    requests.loc[is_a, ["aborted", "output_tokens", "finished_s"]] = [True, 2, 0.65]
    requests.loc[is_a, "output_sha256"] = "of two tokens"
    steps.loc[steps["step"] == 2, ["scheduled_tokens", "decode_tokens"]] = 0
    batch = batch[(batch["request_id"] != "a") | (batch["step"] != 2)]
    return records.variant(requests=requests, steps=steps, batch=batch)


def test_aborted_requests_count_in_the_makespan_but_not_in_throughput_and_latency():
    records = given_up_after_two_tokens(repeated(1))
    late = records.requests.assign(finished_s=[2.0, 1.0])
    records = records.variant(requests=late)
    assert metrics_by_name()["makespan_s"].of(records) == 2.0
    assert metrics_by_name()["throughput_tokens_per_s"].of(records) == (20 + 2) / 2.0
    assert metrics_by_name()["output_throughput_tokens_per_s"].of(records) == 2 / 2.0
    assert metrics_by_name()["latency_mean_s"].of(records) == 1.0
    assert metrics_by_name()["itl_mean_s"].of(records) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("arrival_s", "timeout_s", "incomplete"),
    [(0.0, None, ["warm_up_incomplete"]), (0.5, None, []), (0.0, 3.0, [])],
)
def test_warm_up_must_have_met_what_does_not_depend_on_the_machines_speed(
    arrival_s, timeout_s, incomplete
):
    run = repeated(1).variant(settings={"workload": {"timeout_s": timeout_s}})
    run = run.variant(workload=run.workload.assign(arrival_s=arrival_s))

    def warm(passes, *missed):
        return run.variant(
            facts=facts_of(warmup={"passes": passes, "uncovered_classes": [*missed]})
        )

    assert names(validity.check_warm_up(warm(9))) == []
    assert names(validity.check_warm_up(warm(0))) == ["no_warm_up"]
    assert names(validity.check_warm_up(warm(9, "p0-d4-c9"))) == incomplete
    assert ("cold" in told(warm(9, "p0-d4-c9"))) is (incomplete == [])


def test_a_lost_profile_is_a_reason_where_it_was_requested():
    lost = {"used": "nsys", "reason": "nsys left no report"}
    for requested, used, found in (
        ("nsys", "nsys", ["profiler_lost_events"]),
        ("nsys", "none", ["profiler_lost_events"]),
        ("auto", "nsys", []),
        ("auto", "none", []),
    ):
        facts = facts_of(profiler=lost | {"requested": requested, "used": used})
        assert names(validity.check_profiler(record_of(**facts).profiler)) == found
        records = repeated(1, 1).variant(facts=facts)
        assert told(records).get("profile_lost") == (
            "nsys left no report" if (requested, used) == ("auto", "nsys") else None
        )


def test_noise_does_not_make_a_run_invalid():
    """Oracles, warm-up and a requested profile do; other load, stalls and width do not."""
    verdicts = [Verdict("a", "", "", HELD), Verdict("b", "", "", VIOLATED, 2, "first")]
    repeats = {"min": 2, "until": 0.01, "budget_s": 9, "measured": 2, "half_width_share": 0.5}
    facts = facts_of(warmup={"passes": 0})
    facts["repeats"] = repeats | {"reached": False}
    facts["profiler"] = {"requested": "nsys", "used": "nsys", "reason": "no report"}
    facts["load"] = [{"repeat": n, "cores": 2, "other_cpu_share": 0.9} for n in (0, 1)]
    records = repeated(1, 3)
    flagged = records.steps["duration_s"] > 1  # the second repeat's first pass
    records = records.variant(
        facts=facts, steps=records.steps.assign(stalled=flagged, kv_tokens_used=1)
    )
    result = validity.find_reasons(records, verdicts)
    assert names(result) == ["b", "no_warm_up", "profiler_lost_events"]
    assert result[0].detail == "2 (first)"
    assert set(told(records)) == {"not_precise", "other_load", "unstable", "stalled"}
    imported = records.variant(facts=facts | {"imported_from": {"kind": "k", "files": []}})
    assert names(validity.find_reasons(imported, verdicts)) == ["b"]
    failed = facts_of(status="failed", reason="no room")
    assert validity.find_reasons(records.variant(facts=failed), verdicts) == [
        Reason("failed", "no room")
    ]


@pytest.mark.parametrize("repeats", [1, 2, 5])
def test_few_repeats_are_sound_and_a_lone_one_is_said_to_have_no_interval(repeats):
    facts = facts_of(warmup={"passes": 9})
    records = repeated(*[1] * repeats).variant(facts=facts)
    assert validity.find_reasons(records, []) == []
    assert set(told(records)) == ({"lone_repeat"} if repeats == 1 else set())


def test_modeled_times_have_no_circumstances():
    facts = facts_of(time_source="modeled")
    assert told(repeated(1).variant(facts=facts)) == {}


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20), st.floats(0.1, 10))
def test_an_interval_holds_its_mean_and_scales_with_its_values(values, scale):
    interval = estimate(values)
    assert interval.low <= interval.value <= interval.high
    scaled = estimate([scale * v for v in values])
    assert scaled.high - scaled.low == pytest.approx(
        scale * (interval.high - interval.low), abs=1e-3
    )


def test_the_interval_covers_the_truth_95_times_in_100():
    draw = np.random.default_rng(0)
    intervals = [estimate(draw.normal(7, 2, size=4).tolist()) for _ in range(4000)]
    covered = np.mean([i.low <= 7 <= i.high for i in intervals])
    assert covered == pytest.approx(0.95, abs=0.015)


def test_one_value_has_no_interval_and_none_has_no_mean():
    assert (estimate([3.0]).value, estimate([3.0]).count) == (3.0, 1)
    assert math.isnan(estimate([3.0]).low)
    assert math.isnan(estimate([math.nan]).value)
    assert coefficient_of_variation([3.0]) == 0


# ----------------------------------------------------------------- metrics of other packages

LONGEST = Metric(
    "longest_pass_s",
    "s",
    "Longest forward pass",
    "max(S.duration_s)",
    lambda repeat: float(repeat.steps["duration_s"].max()),
)


def plugged_in(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    point = EntryPoint(name="longest", value=f"{__name__}:{name}", group=metric.GROUP)
    monkeypatch.setattr(plugins, "names", lambda of: (point.name,) if of == metric.GROUP else ())
    monkeypatch.setattr(plugins, "find", lambda group, name: point)


def test_a_metric_of_another_package_is_registered_by_its_entry_point(monkeypatch):
    plugged_in(monkeypatch, "LONGEST")
    assert metric.plugin_metrics() == [LONGEST]
    assert LONGEST.of(two_requests()) == 0.4


def of_no_table(repeat: Records) -> float:
    return float(repeat.added("levels")["level"].max())


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (of_no_table, None),
        (lambda repeat: repeat.steps["x"], "raised KeyError: 'x'; fix or uninstall its package"),
        (lambda repeat: None, "raised TypeError: float"),
    ],
)
def test_a_metric_of_a_package_is_undefined_without_its_table_and_named_if_it_fails(
    monkeypatch, of, words
):
    broken = replace(LONGEST, of=of)
    monkeypatch.setitem(globals(), "BROKEN", broken)
    plugged_in(monkeypatch, "BROKEN")
    monkeypatch.setattr(plugins, "origin", lambda group, name: f"toys 0.1, {name}")
    monkeypatch.setattr(experiment, "all_metrics", lambda: (broken,))
    if words is None:
        assert repeat_metrics(two_requests(), "0" * 64).empty
        return
    with pytest.raises(BadInput, match=f"^metric {broken.name} of toys 0.1, longest {words}"):
        repeat_metrics(two_requests(), "0" * 64)


def test_an_entry_point_that_is_no_metric_is_refused_by_name(monkeypatch):
    plugged_in(monkeypatch, "BLOCK_SIZE")
    with pytest.raises(BadInput, match=r"longest .* must be a \S+\.Metric"):
        metric.plugin_metrics()
