"""Cost of preemptions: by hand, against a slow oracle, and in the cases without overhead."""

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope import tables
from kvscope.base.statistics import estimate
from kvscope.judge.records import Records
from kvscope.metrics.experiment import metrics_of, repeat_metrics
from kvscope.metrics.registry import metrics_by_name
from kvscope.tables.due import decode_due_s, decode_passes, held_out_due_s
from tests.run_records import facts_of

DECODE_S = 0.010
NO_BATCH = tables.BATCH.empty()


def decode(seconds: float = DECODE_S, tokens: int = 4, **more) -> dict:
    return {"duration_s": seconds, "decode_tokens": tokens} | more


def prefill(seconds: float, tokens: int, **more) -> dict:
    return {"duration_s": seconds, "prefill_tokens": tokens} | more


def steps_of(passes: list[dict]) -> pd.DataFrame:
    """A `steps` table; a pass decodes, prefills or both, by the tokens it has."""
    counts = [
        *("prefill_tokens", "decode_tokens", "recomputed_tokens", "resumed_requests"),
        *("preempted_requests", "host_blocks_used", "host_blocks_total", "kv_blocks_used"),
        *("repeat", "kv_tokens_used"),
    ]
    zeros = dict.fromkeys(counts, 0)
    rows = [{"step": n, "stalled": False} | zeros | row for n, row in enumerate(passes)]
    phases = {(True, True): "mixed", (True, False): "prefill"}
    for row in rows:
        row["phase"] = phases.get((row["prefill_tokens"] > 0, row["decode_tokens"] > 0), "decode")
    return pd.DataFrame(rows, columns=tables.STEPS.names)


def swapped_out(step: int, seconds: float | None, size: int = 100) -> dict:
    """A preemption with the copy that it needs."""
    row = {"step": step, "event": "preempt", "policy": "swap", "refused": False}
    return row | {"copy": {"direction": "out", "copy_s": seconds, "bytes": size}}


def swapped_in(step: int, seconds: float | None, size: int = 100) -> dict:
    """A resumption with the copy that it needs."""
    row = {"step": step, "event": "resume", "policy": "swap", "refused": False}
    return row | {"copy": {"direction": "in", "copy_s": seconds, "bytes": size}}


def dropped(step: int, refused: bool = False) -> dict:
    row = {"step": step, "event": "preempt", "policy": "recompute"}
    return row | {"refused": refused}


def records_of(passes: list[dict], preemptions: list[dict] | None = None) -> Records:
    """Records of one repeat; `preemptions` may each have a copy."""
    events = preemptions or []
    copies = [{"step": e["step"], "kind": "kv"} | e["copy"] for e in events if "copy" in e]
    return Records(
        Path(),
        facts=facts_of(time_source="measured", engine={"block_size": 16}),
        workload=tables.WORKLOAD.empty(),
        requests=tables.REQUESTS.empty(),
        steps=steps_of(passes),
        batch=tables.BATCH.empty(),
        preemptions=pd.DataFrame(events, columns=tables.PREEMPTIONS.names),
        transfers=pd.DataFrame(copies, columns=tables.TRANSFERS.names),
    )


def of(metric: str, records: Records) -> float:
    return metrics_by_name()[metric].of(records)


# ------------------------------------------------------------- work due without preemptions


def slow_due(rows: list[dict], row: dict) -> float:
    """The definition, word by word."""
    if row["decode_tokens"] == 0:
        return 0.0
    plain = [
        other
        for other in rows
        if other["phase"] == "decode"
        and not other["resumed_requests"]
        and not other["preempted_requests"]
        and not other["stalled"]
    ]
    nearest = sorted(plain, key=lambda other: (abs(other["step"] - row["step"]), other["step"]))
    return statistics.fmean(o["duration_s"] for o in nearest[:10]) if nearest else math.nan


PASSES = st.one_of(
    st.builds(decode, st.floats(0.001, 1)),
    st.builds(decode, st.floats(0.001, 1), resumed_requests=st.integers(0, 1)),
    st.builds(decode, st.floats(0.001, 1), preempted_requests=st.integers(0, 1)),
    st.builds(decode, st.floats(0.001, 1), stalled=st.booleans()),
    st.builds(prefill, st.floats(0.001, 1), st.integers(1, 99), decode_tokens=st.integers(0, 1)),
)


@given(st.lists(PASSES, min_size=1, max_size=60))
def test_where_all_decode_alike_the_mean_of_the_ten_nearest_plain_passes_is_due(passes):
    steps = steps_of(passes)
    rows = steps.to_dict("records")
    expected = [slow_due(rows, row) for row in rows]
    assert due_of(steps) == pytest.approx(expected, nan_ok=True)


def test_the_earlier_of_two_equally_near_passes_counts():
    before, after = [decode(0.001 * n) for n in range(1, 6)], [decode(0.1)] * 6
    steps = steps_of([*before, prefill(1, 9), decode(9, resumed_requests=1), *after])
    # Pass 0 and pass 12 are both 6 away from pass 6: 1, 2, 3, 4, 5 ms and five of 100 ms.
    assert due_of(steps)[6] == pytest.approx((0.015 + 5 * 0.1) / 10)


def due_of(steps: pd.DataFrame, batch: pd.DataFrame = NO_BATCH) -> np.ndarray:
    return decode_due_s(decode_passes(steps, batch)).to_numpy()


A, B, C = 0.004, 0.0003, 2e-6  # seconds a pass, a request, a token (here: a block in use)


def cost(requests: Any, context: Any) -> Any:
    return A + B * requests + C * context


def served(draw: np.random.Generator, noise: float, extra: float = 0.0) -> pd.DataFrame:
    """A repeat whose batch grows while it is served; every 20th pass resumes a request.

    Noise is a share of a pass's time, and skewed as durations are; `extra` is what resuming costs.
    """
    passes = []
    for step in range(300):
        requests = 2 + step // 20 + int(draw.integers(0, 3))
        context = requests * int(draw.integers(100, 900))
        resumes = step % 20 == 19
        slow = 1 + noise * draw.exponential()
        seconds = cost(requests, context) * slow + extra * resumes
        more = {"resumed_requests": int(resumes), "kv_blocks_used": context}
        passes.append(decode(seconds, requests, **more))
    return steps_of(passes)


def test_the_due_time_grows_with_the_batch_and_its_context():
    steps = served(np.random.default_rng(0), noise=0, extra=0.01)
    expected = cost(steps["decode_tokens"], steps["kv_blocks_used"])
    assert due_of(steps) == pytest.approx(expected.to_numpy(float), rel=1e-6)


def test_a_batch_that_no_plain_pass_has_is_judged_by_the_others_and_never_costs_less():
    passes = [decode(cost(n, 0), n) for n in (2, 3, 4, 5) for _ in range(10)]
    more = {"resumed_requests": 1}
    steps = steps_of([*passes, decode(1, 16, **more)])
    assert due_of(steps)[-1] == pytest.approx(cost(16, 0), rel=1e-6)
    shrinking = [decode(0.01 - n * 0.001, n) for n in (2, 3, 4, 5) for _ in range(10)]
    steps = steps_of([*shrinking, decode(1, 16, **more)])
    assert due_of(steps)[-1] == pytest.approx(0.005, rel=1e-6)


def test_repeats_on_a_slower_machine_have_more_due_and_do_not_turn_the_line():
    speeds = (1, 1.3, 1, 1, 2)
    repeats = [served(np.random.default_rng(seed), noise=0) for seed in range(len(speeds))]
    slowed = [
        repeat.assign(repeat=number, duration_s=speed * repeat["duration_s"])
        for number, (repeat, speed) in enumerate(zip(repeats, speeds, strict=True))
    ]
    steps = pd.concat(slowed, ignore_index=True)
    assert due_of(steps) == pytest.approx(steps["duration_s"].to_numpy(float), rel=1e-5)


def test_the_context_is_that_of_the_requests_that_decode():
    passes = [decode(cost(4, 100 * n), 4, kv_blocks_used=7) for n in range(40)]
    passes.append(prefill(1, 50, decode_tokens=4, kv_blocks_used=7))
    rows = [(n, "decode", 100 * n) for n in range(40)]
    rows += [(40, "decode", 1000), (40, "prefill", 5000)]
    batch = pd.DataFrame(rows, columns=["step", "phase", "context_tokens"]).assign(repeat=0)
    assert due_of(steps_of(passes), batch)[-1] == pytest.approx(cost(4, 1000), rel=1e-6)


def test_a_few_slow_passes_far_away_change_nothing():
    steps = served(np.random.default_rng(0), noise=0)
    steps.loc[[0, 100, 200], "duration_s"] *= 2.5
    away = list(range(225, 300))
    expected = cost(steps["decode_tokens"], steps["kv_blocks_used"]).to_numpy(float)
    assert due_of(steps)[away] == pytest.approx(expected[away], rel=1e-3)


# ---------------------------------------------------------------- the negative control


def of_steps(steps: pd.DataFrame) -> Records:
    return records_of([decode()]).variant(steps=steps)


def test_each_plain_pass_is_judged_by_a_fit_that_has_not_seen_it():
    steps = served(np.random.default_rng(1), noise=0.2)
    plain = np.flatnonzero(steps["resumed_requests"] == 0)
    result = held_out_due_s(decode_passes(steps, NO_BATCH))
    assert list(result.index) == list(plain)
    for fold in range(5):
        out = plain[fold::5]
        unseen = steps.assign(preempted_requests=steps.index.isin(out).astype(int))
        assert result[out].to_numpy() == pytest.approx(due_of(unseen)[out])


def test_the_control_is_the_mean_error_of_the_ten_passes_most_like_each_that_resumes():
    steps = served(np.random.default_rng(2), noise=0.2)
    plain = steps[steps["resumed_requests"] == 0]
    error = plain["duration_s"].astype(float) - held_out_due_s(decode_passes(steps, NO_BATCH))
    expected = 0.0
    for _, row in steps[steps["resumed_requests"] > 0].iterrows():
        away = sum(
            ((plain[column] - row[column]).astype(float) / plain[column].std(ddof=0)) ** 2
            for column in ("decode_tokens", "kv_blocks_used")
        )
        expected += error[away.nsmallest(10).index].mean()
    records = of_steps(steps)
    assert of("resume_overhead_net_control_s", records) == pytest.approx(expected)
    chance = 1.96 * math.sqrt(15 * (error**2).mean())
    uncertainty = of("resume_overhead_net_uncertainty_s", records)
    assert uncertainty == pytest.approx(max(chance, abs(expected)))


def test_the_cost_of_resuming_is_within_the_uncertainty_and_plain_passes_cost_nothing():
    extra, errors, controls, bounds = 0.005, [], [], []
    for seed in range(20):
        run = of_steps(served(np.random.default_rng(seed), noise=0.05, extra=extra))
        (records,) = run.repeats()
        errors.append(of("resume_overhead_net_s", records) - 15 * extra)
        controls.append(of("resume_overhead_net_control_s", records))
        bounds.append(of("resume_overhead_net_uncertainty_s", records))
    bound = statistics.fmean(bounds)
    assert sum(abs(e) <= b for e, b in zip(errors, bounds, strict=True)) >= 18
    # Neither is biased: over 20 repeats chance leaves less than a quarter of a repeat's bound.
    assert abs(statistics.fmean(errors)) < bound / 4
    assert abs(statistics.fmean(controls)) < bound / 4
    # The bound is informative: a fraction of the measured value.
    assert bound < 0.2 * 15 * extra


def test_what_no_line_fits_shows_in_the_control_and_is_the_uncertainty():
    # A batch of 5 takes 3 ms more than the line from 2 to 8; all that resume have 5.
    draw, passes = np.random.default_rng(3), []
    for step in range(300):
        resumes = step % 10 == 9
        requests = 5 if resumes else int(draw.choice([2, 5, 8]))
        seconds = cost(requests, 0) + 0.003 * (requests == 5)
        passes.append(decode(seconds, requests, resumed_requests=int(resumes)))
    (records,) = records_of(passes).repeats()
    net, control, uncertainty = (
        of(f"resume_overhead_net{what}_s", records) for what in ("", "_control", "_uncertainty")
    )
    assert control == pytest.approx(net, rel=0.1)  # resuming cost nothing: all of it is error
    assert control > 30 * 0.001
    assert uncertainty == pytest.approx(control)


def test_passes_that_decode_nothing_need_no_control():
    passes = [decode(0.01 + 0.001 * (n % 3)) for n in range(30)]
    passes[20] = prefill(0.5, 101, recomputed_tokens=100, resumed_requests=1)
    for metric in ("control", "uncertainty"):
        assert of(f"resume_overhead_net_{metric}_s", records_of(passes, [dropped(10)])) == 0


def test_the_error_of_a_mixed_pass_is_shared_like_its_time():
    passes = [decode(0.01 + 0.001 * (n % 3)) for n in range(60)]
    passes[30] = decode(0.05, resumed_requests=1)
    whole = records_of(passes)
    passes[30] = prefill(0.05, 120, recomputed_tokens=30, resumed_requests=1, decode_tokens=4)
    quarter = records_of(passes)
    for metric in ("control", "uncertainty"):
        name = f"resume_overhead_net_{metric}_s"
        assert of(name, quarter) == pytest.approx(of(name, whole) / 4)


def test_the_interval_of_the_net_cost_holds_the_uncertainty():
    one, two = (
        served(np.random.default_rng(seed), noise=0.2, extra=0.003).assign(repeat=seed)
        for seed in (0, 1)
    )
    records = of_steps(pd.concat([one, two], ignore_index=True))
    result = metrics_of(records, repeat_metrics(records, "0" * 64), [], "0" * 64).set_index(
        "metric"
    )
    row = result.loc["resume_overhead_net_s"]
    alone = estimate([of("resume_overhead_net_s", repeat) for repeat in records.repeats()])
    uncertainty = result["value"].astype(float)["resume_overhead_net_uncertainty_s"]
    assert uncertainty > 0
    half = math.hypot(alone.high - alone.value, uncertainty)
    assert row["value"] == pytest.approx(alone.value)
    assert row["ci_high"] - row["value"] == pytest.approx(half)
    assert row["value"] - row["ci_low"] == pytest.approx(half)


# ----------------------------------------------------------------------------- by hand


def test_swap_costs_its_copies_and_the_paper_counts_the_whole_pass():
    passes = [decode() for _ in range(30)]
    passes[10] = decode(0.030, preempted_requests=1)
    passes[20] = decode(0.035, tokens=5, resumed_requests=1)
    records = records_of(passes, [swapped_out(10, 0.018), swapped_in(20, 0.022)])
    assert of("resume_overhead_gross_s", records) == pytest.approx(0.035 + 0.018)
    # 25 ms beyond the due decode: the copy back, and 3 ms of whatever else.
    assert of("resume_overhead_net_s", records) == pytest.approx(0.025 + 0.018)
    assert of("swap_out_s", records) == pytest.approx(0.018)
    assert of("swap_in_s", records) == pytest.approx(0.022)
    assert of("swapped_bytes", records) == 200


def test_a_pass_that_only_recomputes_is_due_but_for_its_newest_token():
    passes = [decode() for _ in range(30)]
    passes[10] = decode(preempted_requests=1)
    passes[20] = prefill(0.5, 101, recomputed_tokens=100, resumed_requests=1)
    records = records_of(passes, [dropped(10)])
    assert of("resume_overhead_gross_s", records) == pytest.approx(0.5)
    assert of("resume_overhead_net_s", records) == pytest.approx(0.5 * 100 / 101)


def test_in_a_mixed_pass_decodes_and_new_prompts_were_due():
    passes = [decode() for _ in range(30)]
    mixed = {"recomputed_tokens": 30, "resumed_requests": 2, "decode_tokens": 4}
    passes[20] = prefill(0.110, 120, **mixed)
    records = records_of(passes, [dropped(10)])
    assert of("resume_overhead_net_s", records) == pytest.approx((0.110 - DECODE_S) * 30 / 120)
    # Another request resumes by copy in the same pass: the copy counts whole.
    passes[20] = prefill(0.150, 120, **mixed)
    records = records_of(passes, [dropped(10), swapped_in(20, 0.040)])
    expected = 0.040 + (0.150 - 0.040 - DECODE_S) * 30 / 120
    assert of("resume_overhead_net_s", records) == pytest.approx(expected)


# -------------------------------------------------------------------------- edges


@given(st.lists(PASSES, min_size=1, max_size=30))
def test_nothing_preempted_costs_nothing(passes):
    calm = [{**row, "resumed_requests": 0, "preempted_requests": 0} for row in passes]
    records = records_of(calm)
    net = [f"resume_overhead_net{what}_s" for what in ("", "_control", "_uncertainty")]
    for metric in ("resume_overhead_gross_s", *net, "swapped_bytes"):
        assert of(metric, records) == 0


@given(
    st.lists(st.floats(0.01, 1), min_size=1, max_size=9),
    st.integers(1, 99),
    st.integers(0, 99),
    st.floats(0, 0.01),
)
def test_the_paper_never_counts_less_than_net(durations, recomputed, fresh, copied):
    resume = {"recomputed_tokens": recomputed, "resumed_requests": 1}
    passes = [decode(0.005)] * 12
    passes += [prefill(seconds, recomputed + fresh, **resume) for seconds in durations]
    records = records_of(passes, [swapped_in(12, copied)])
    net, gross = (of(f"resume_overhead_{kind}_s", records) for kind in ("net", "gross"))
    assert 0 < net <= gross * (1 + 1e-9)


def test_without_a_plain_decode_pass_nothing_is_known_to_be_due():
    records = records_of([decode(resumed_requests=1)] * 3, [swapped_in(0, 0.001)])
    for what in ("", "_control", "_uncertainty"):
        assert math.isnan(of(f"resume_overhead_net{what}_s", records))
    assert of("resume_overhead_gross_s", records) == pytest.approx(3 * DECODE_S)


def test_a_copy_of_unknown_length_makes_its_sum_unknown():
    passes = [*[decode()] * 12, decode(resumed_requests=1)]
    records = records_of(passes, [swapped_out(3, None), swapped_in(12, 0.01)])
    assert math.isnan(of("swap_out_s", records))
    assert math.isnan(of("resume_overhead_gross_s", records))
    assert of("swap_in_s", records) == 0.01


def test_the_pool_has_a_peak_and_what_it_had_no_room_for_was_recomputed():
    passes = [decode(host_blocks_used=n, host_blocks_total=8) for n in (0, 6, 2)]
    of_choice, refused = dropped(0), dropped(2, refused=True)
    records = records_of(passes, [of_choice, dropped(1, True), swapped_out(2, 0.01), refused])
    assert of("host_block_utilization_peak", records) == 0.75
    assert of("recompute_fallbacks", records) == 2
    without = records_of([decode()] * 3, [dropped(1)])
    assert math.isnan(of("host_block_utilization_peak", without))
    assert of("recompute_fallbacks", without) == 0


def test_ten_thousand_passes_with_five_hundred_resumptions_add_up():
    every = 20
    passes = [decode() for _ in range(10_000)]
    passes[::every] = [decode(0.02, resumed_requests=1)] * (10_000 // every)
    events = [swapped_in(step, 0.01) for step in range(0, 10_000, every)]
    records = records_of(passes, events)
    assert of("resume_overhead_net_s", records) == pytest.approx(500 * DECODE_S)
