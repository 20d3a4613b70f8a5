"""What preemptions cost: by hand, against a slow oracle, and in the cases where nothing is due."""

import math
import statistics

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope import tables
from kvscope.analyse.metrics import BY_NAME
from kvscope.analyse.records import Records
from kvscope.due import decode_due_s

DECODE_S = 0.010


def decode(seconds: float = DECODE_S, tokens: int = 4, **more) -> dict:
    return {"duration_s": seconds, "decode_tokens": tokens} | more


def prefill(seconds: float, tokens: int, **more) -> dict:
    return {"duration_s": seconds, "prefill_tokens": tokens} | more


def steps_of(passes: list[dict]) -> pd.DataFrame:
    """A `steps` table; a pass decodes, prefills or both, by the tokens it has."""
    counts = ("prefill_tokens", "decode_tokens", "recomputed_tokens", "resumed_requests")
    counts += ("preempted_requests", "host_blocks_used", "host_blocks_total")
    zeros = dict.fromkeys(counts, 0)
    rows = [{"step": n, "stalled": False} | zeros | row for n, row in enumerate(passes)]
    phases = {(True, True): "mixed", (True, False): "prefill"}
    for row in rows:
        row["phase"] = phases.get((row["prefill_tokens"] > 0, row["decode_tokens"] > 0), "decode")
    return pd.DataFrame(rows, columns=tables.STEPS.names)


def swapped_out(step: int, seconds: float | None, size: int = 100) -> dict:
    row = {"step": step, "event": "preempt", "policy": "swap", "refused": False}
    return row | {"swap_out_s": seconds, "bytes": size}


def swapped_in(step: int, seconds: float | None, size: int = 100) -> dict:
    row = {"step": step, "event": "resume", "policy": "swap", "refused": False}
    return row | {"swap_in_s": seconds, "bytes": size}


def dropped(step: int, refused: bool = False) -> dict:
    row = {"step": step, "event": "preempt", "policy": "recompute", "bytes": 0}
    return row | {"refused": refused}


def records_of(passes: list[dict], preemptions: list[dict] | None = None) -> Records:
    return Records(
        tables.WORKLOAD.empty(),
        tables.REQUESTS.empty(),
        steps_of(passes),
        tables.BATCH.empty(),
        pd.DataFrame(preemptions or [], columns=tables.PREEMPTIONS.names),
        block_size=16,
    )


def of(metric: str, records: Records) -> float:
    return BY_NAME[metric].of(records)


# ------------------------------------------------------------------- what was due anyway


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
    return statistics.median(o["duration_s"] for o in nearest[:10]) if nearest else math.nan


PASSES = st.one_of(
    st.builds(decode, st.floats(0.001, 1)),
    st.builds(decode, st.floats(0.001, 1), resumed_requests=st.integers(0, 1)),
    st.builds(decode, st.floats(0.001, 1), preempted_requests=st.integers(0, 1)),
    st.builds(decode, st.floats(0.001, 1), stalled=st.booleans()),
    st.builds(prefill, st.floats(0.001, 1), st.integers(1, 99), decode_tokens=st.integers(0, 1)),
)


@given(st.lists(PASSES, min_size=1, max_size=60))
def test_what_is_due_is_the_median_of_the_ten_nearest_plain_decode_passes(passes):
    steps = steps_of(passes)
    found = decode_due_s(steps, np.ones(len(steps), dtype=bool))
    rows = steps.to_dict("records")
    assert found == pytest.approx([slow_due(rows, row) for row in rows], nan_ok=True)


def test_of_two_equally_near_the_earlier_counts():
    before, after = [decode(0.001 * n) for n in range(1, 6)], [decode(0.1)] * 6
    steps = steps_of([*before, prefill(1, 9), decode(9, resumed_requests=1), *after])
    due = decode_due_s(steps, (steps["resumed_requests"] > 0).to_numpy())
    # Pass 0 and pass 12 are both 6 away from pass 6: 1, 2, 3, 4, 5 ms and five of 100 ms.
    assert due == pytest.approx([(0.005 + 0.1) / 2])


# ----------------------------------------------------------------------------- by hand


def test_swap_costs_its_copies_and_the_paper_counts_the_whole_pass():
    passes = [decode() for _ in range(30)]
    passes[10] = decode(0.030, preempted_requests=1)
    passes[20] = decode(0.035, tokens=5, resumed_requests=1)
    records = records_of(passes, [swapped_out(10, 0.018), swapped_in(20, 0.022)])
    assert of("resume_overhead_paper_s", records) == pytest.approx(0.035 + 0.018)
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
    assert of("resume_overhead_paper_s", records) == pytest.approx(0.5)
    assert of("resume_overhead_net_s", records) == pytest.approx(0.5 * 100 / 101)


def test_in_a_mixed_pass_decodes_and_new_prompts_were_due():
    passes = [decode() for _ in range(30)]
    mixed = {"recomputed_tokens": 30, "resumed_requests": 2, "decode_tokens": 4}
    passes[20] = prefill(0.110, 120, **mixed)
    records = records_of(passes, [dropped(10)])
    assert of("resume_overhead_net_s", records) == pytest.approx((0.110 - DECODE_S) * 30 / 120)
    # One more request comes back by copy in the same pass: the copy counts whole.
    passes[20] = prefill(0.150, 120, **mixed)
    records = records_of(passes, [dropped(10), swapped_in(20, 0.040)])
    expected = 0.040 + (0.150 - 0.040 - DECODE_S) * 30 / 120
    assert of("resume_overhead_net_s", records) == pytest.approx(expected)


# -------------------------------------------------------------------------- edges


@given(st.lists(PASSES, min_size=1, max_size=30))
def test_nothing_preempted_costs_nothing(passes):
    calm = [{**row, "resumed_requests": 0, "preempted_requests": 0} for row in passes]
    records = records_of(calm)
    for metric in ("resume_overhead_paper_s", "resume_overhead_net_s", "swapped_bytes"):
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
    net, paper = (of(f"resume_overhead_{kind}_s", records) for kind in ("net", "paper"))
    assert 0 < net <= paper * (1 + 1e-9)


def test_without_a_plain_decode_pass_nothing_is_known_to_be_due():
    records = records_of([decode(resumed_requests=1)] * 3, [swapped_in(0, 0.001)])
    assert math.isnan(of("resume_overhead_net_s", records))
    assert of("resume_overhead_paper_s", records) == pytest.approx(3 * DECODE_S)


def test_a_copy_of_unknown_length_makes_its_sum_unknown():
    passes = [*[decode()] * 12, decode(resumed_requests=1)]
    records = records_of(passes, [swapped_out(3, None), swapped_in(12, 0.01)])
    assert math.isnan(of("swap_out_s", records))
    assert math.isnan(of("resume_overhead_paper_s", records))
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
