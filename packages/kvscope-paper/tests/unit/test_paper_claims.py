"""The paper's claims: where each stands, and verdicts that follow from values."""

import math
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvscope.base.time_sources import MEASURED, MODELED
from kvscope.tables.runschema import EngineRecord
from kvscope_kernels.analyse.events import COLUMNS, Events
from kvscope_kernels.kv_events import K_READ, K_WRITE, V_READ
from kvscope_paper.claims import accesses
from kvscope_paper.claims.judging import (
    FAILS,
    HOLDS,
    IN_PART,
    NOT_RUN,
    UNKNOWN,
    Claim,
    by_count,
    within,
)
from kvscope_paper.claims.registry import anchor, claims, judged
from kvscope_paper.claims.values import Values
from kvscope_paper.comparison import Comparison
from kvscope_paper.published.figures import Point, points, tables

CLAIMS = claims()
DEVICE = "modeled a100-40gb"
NOT_PUBLISHED = "No values are published."
SECTIONS = (
    *("II", "IV", "V-A", "V-C", "V-D", "VI-A", "VI-A, key observations", "VI-B"),
    *("VI-C", "VI-C, key observations", "VI-C, use of the cache"),
    *("abstract III-B (poster, Figures 2 to 5)", "abstract III-C (poster, Figure 6)"),
)
# Claims of the figures without published values come between the others.
FIGURES = (
    *("3a", "3b", "3c", "4a", "4b", "4c", "5", "6a", "6b", "7", "8a", "8b", "9", "10a", "10b"),
    *("11a", "11b", "11c", "abstract 2a", "abstract 2b", "abstract 3a", "abstract 3b"),
    "abstract 4",
)
PUBLISHED = {table.figure for table in tables()}


def compared(point: Point, value: float, run=None, device: str = DEVICE) -> Comparison:
    return Comparison(point, device, run, value, math.nan, math.nan, value, "s")


def values_of(change=lambda point: point.value, wanted=lambda point: True) -> Values:
    return Values(compared(point, change(point)) for point in points() if wanted(point))


AS_PUBLISHED = values_of()
# Claims that values alone, without their runs, decide.
DECIDED = [claim for claim in CLAIMS if claim.ours(AS_PUBLISHED).verdict != UNKNOWN]


def each(claims):
    ids = [f"{'+'.join(claim.figures)}: {claim.words[:40]}" for claim in claims]
    return pytest.mark.parametrize("claim", claims, ids=ids)


every_claim = each(CLAIMS)


def claims_of(figure: str, words: str = "") -> Claim:
    (claim,) = (one for one in CLAIMS if one.figures == (figure,) and words in one.words)
    return claim


@every_claim
def test_a_claim_names_published_figures_or_says_that_it_has_none(claim):
    assert set(claim.figures) <= set(FIGURES)
    has_values = set(claim.figures) <= PUBLISHED
    assert has_values != (NOT_PUBLISHED in claim.published.evidence)
    assert has_values or claim.published.verdict == UNKNOWN


def test_claims_stand_in_the_papers_order_each_after_the_last_figure_it_rests_on():
    places = [
        (SECTIONS.index(claim.section), max(map(FIGURES.index, claim.figures), default=-1))
        for claim in CLAIMS
    ]
    assert places == sorted(places)


def test_every_published_figure_has_a_claim():
    assert {figure for claim in CLAIMS for figure in claim.figures} >= PUBLISHED


@every_claim
def test_a_claim_is_said_once_and_both_findings_are_sentences(claim):
    assert sum(one.words == claim.words and one.figures == claim.figures for one in CLAIMS) == 1
    for text in (claim.words, claim.published.evidence, claim.ours(AS_PUBLISHED).evidence):
        assert re.fullmatch(r"[A-Z0-9][^{}]*\.", text), text


@every_claim
def test_a_claim_without_values_was_not_run(claim):
    assert claim.ours(Values([])) == NOT_RUN


@each(DECIDED)
def test_the_rule_gives_the_published_verdict_for_published_values(claim):
    """The exceptions are what stalls of the host are part of: the published runs hold them."""
    by_rule = claim.ours(AS_PUBLISHED).verdict
    if by_rule != claim.published.verdict:
        assert (by_rule, claim.published.verdict) == (HOLDS, IN_PART)
        assert set(claim.figures) <= {"4b", "4c"}
        assert "stall" in claim.published.evidence


def test_without_the_hosts_stalls_chunking_costs_little():
    without = values_of(wanted=lambda point: "stalls" in point.table.title)
    assert claims_of("4b", "sharply").ours(without).verdict == FAILS
    assert claims_of("4b", "kernel").ours(without).verdict == IN_PART
    assert claims_of("4b", "context window").ours(without).verdict == HOLDS


CHANGED = {
    "upside down": values_of(lambda point: 1 / point.value if point.value else 0),
    "all equal": values_of(lambda point: 1.0),
    "far apart": values_of(lambda point: point.value**4),
}


@each(DECIDED)
def test_a_verdict_follows_from_the_values(claim):
    verdicts = {name: claim.ours(values).verdict for name, values in CHANGED.items()}
    assert any(one != claim.ours(AS_PUBLISHED).verdict for one in verdicts.values()), verdicts


@pytest.mark.parametrize(
    ("right", "verdict"),
    [([True, True], HOLDS), ([True, False], IN_PART), ([False, False], FAILS)],
)
def test_a_claim_that_holds_in_some_cases_holds_in_part(right, verdict):
    finding = by_count(right, "{} cases.")
    assert finding is not None
    assert finding.verdict == verdict
    assert finding.evidence == f"{sum(right)} of 2 cases."


def test_no_cases_decide_nothing():
    assert by_count([], "{}") is None


@pytest.mark.parametrize(
    ("swap_over_recompute", "verdict"), [(0.9997, UNKNOWN), (0.97, HOLDS), (1.03, FAILS)]
)
def test_who_wins_by_almost_nothing_cannot_be_told(swap_over_recompute, verdict):
    recompute = {
        point.x: point.value
        for point in points(("8a",))
        if point.settings["overflow.name"] == "recompute"
    }

    def swapped(point):
        if point.settings.get("overflow.name") == "swap" and point.x in recompute:
            return swap_over_recompute * recompute[point.x]
        return point.value

    assert claims_of("8a", "blocks of 16").ours(values_of(swapped)).verdict == verdict


def test_swap_that_costs_more_where_memory_is_scarce_and_less_where_ample_refutes_it():
    by_policy = {(p.x, p.settings["overflow.name"]): p.value for p in points(("10a",))}

    def exchanged(point):
        other = {"recompute": "swap", "swap": "recompute"}
        return by_policy[point.x, other[point.settings["overflow.name"]]]

    own = values_of(exchanged, lambda point: point.table.figure == "10a")
    assert claims_of("10a", "scarce").ours(own).verdict == FAILS


def test_sizes_of_the_cache_are_told_in_gb():
    evidence = claims_of("10a", "scarce").ours(AS_PUBLISHED).evidence
    assert all(f"at {gb}" in evidence for gb in (6, 10, 14, 18, 22, 24))
    assert "GB" in evidence


def of_steps(figure: str, **columns) -> Values:
    """The values of a figure of one run with these passes, each of which takes a second."""
    passes = len(next(iter(columns.values())))
    steps = pd.DataFrame({"step": range(passes), "start_s": range(passes), **columns})
    steps["duration_s"] = 1.0
    run = SimpleNamespace(id="one", steps=lambda repeat: steps)
    own = [point for point in points((figure,)) if point.settings.get("overflow.name") == "swap"]
    return Values(compared(point, point.value, run) for point in own)


@pytest.mark.parametrize(
    ("early", "late", "verdict"),
    [
        *((6.4, 1.9, HOLDS), (6.4, 2.9, HOLDS), (7.1, 1.9, IN_PART), (6.4, 3.1, IN_PART)),
        *((20.0, 1.9, IN_PART), (20.0, 9.0, FAILS)),
    ],
)
def test_the_host_pool_is_judged_by_its_peak_and_by_what_comes_later(early, late, verdict):
    own = of_steps(
        "11b", host_blocks_used=[early] * 20 + [late] * 20, host_blocks_total=[100.0] * 40
    )
    assert claims_of("11b", "host pool").ours(own).verdict == verdict


@pytest.mark.parametrize(
    ("full", "verdict"), [(10, HOLDS), (9, IN_PART), (4, FAILS)], ids=lambda one: str(one)
)
def test_a_cache_that_empties_before_the_end_is_full_in_part(full, verdict):
    used = [90.0] * full + [10.0] * (10 - full)
    own = of_steps("11b", kv_blocks_used=used, kv_blocks_total=[100.0] * 10)
    assert claims_of("11b", "almost full").ours(own).verdict == verdict


def reads(*rows: Sequence[int]) -> Events:
    """Reads of one request and head: pass, kind, block and start; a block's place is its order."""
    step, kind, block, start = (np.array(column) for column in zip(*rows, strict=True))
    columns = {name: np.zeros(len(rows), np.int64) for name in COLUMNS}
    columns |= {"step": step, "kind": kind, "block": block, "start_ns": start, "end_ns": start + 1}
    columns["block_position"] = np.arange(len(rows))
    return Events(requests=("a",), **columns)


def judged_by(monkeypatch, claim: Claim, events: Events, time_source: str = MEASURED) -> str:
    monkeypatch.setattr(
        "kvscope_kernels.analyse.events.read_events", lambda *args, **kwargs: events
    )
    monkeypatch.setattr(accesses, "trace_to_draw", lambda run: SimpleNamespace(path=None))
    run = SimpleNamespace(id="one", repeats=[0], time_source=time_source)
    own = [compared(point, point.value, run) for point in points(("6a", "6b"))]
    return claim.ours(Values(own)).verdict


DECODE = ((1, K_READ, 4, 10), (1, K_READ, 7, 20), (1, V_READ, 4, 30), (1, V_READ, 7, 40))
PREFILL = ((0, K_READ, 4, 1), (0, V_READ, 4, 2))


def test_a_lost_read_refutes_that_all_are_recorded(monkeypatch):
    claim = claims_of("6b", "buffers")
    assert judged_by(monkeypatch, claim, reads(*PREFILL, *DECODE)) == HOLDS
    assert judged_by(monkeypatch, claim, reads(*PREFILL, *DECODE[:-1])) == FAILS


def test_of_blocks_whose_ids_fall_and_of_an_order_that_goes_back_each_refutes_a_part(monkeypatch):
    claim = claims_of("6b", "increasing order")
    falling = [(step, kind, 20 - block, start) for step, kind, block, start in DECODE]
    back = [(step, kind, 20 - block, 100 - start) for step, kind, block, start in DECODE]
    both = [(step, kind, block, 100 - start) for step, kind, block, start in DECODE]
    assert judged_by(monkeypatch, claim, reads(*PREFILL, *DECODE)) == HOLDS
    assert judged_by(monkeypatch, claim, reads(*PREFILL, *falling)) == IN_PART
    assert judged_by(monkeypatch, claim, reads(*PREFILL, *back)) == IN_PART
    assert judged_by(monkeypatch, claim, reads(*PREFILL, *both)) == FAILS


def test_reads_that_begin_together_refute_that_they_are_less_parallel_than_writes(monkeypatch):
    claim = claims_of("6b", "less parallel")
    written = ((0, K_WRITE, 4, 1), (0, K_WRITE, 7, 3))
    together = [(step, kind, block, 10) for step, kind, block, _ in DECODE]
    assert judged_by(monkeypatch, claim, reads(*written, *DECODE)) == HOLDS
    assert judged_by(monkeypatch, claim, reads(*written, *together)) == FAILS
    assert judged_by(monkeypatch, claim, reads(*PREFILL, *DECODE)) == UNKNOWN


@pytest.mark.parametrize(
    ("layers", "mib", "verdict"), [(32, 8, HOLDS), (16, 8, IN_PART), (64, 16, IN_PART)]
)
def test_the_size_of_a_block_is_judged_by_layer_and_in_all(layers, mib, verdict):
    claim = claims_of("6b", "128 KB")
    engine = EngineRecord(block_bytes=mib * 2**20)
    record = SimpleNamespace(engine=engine)
    run = SimpleNamespace(id="one", record=record, settings={"model": {"layers": layers}})
    own = [compared(point, point.value, run) for point in points(("6b",))]
    assert claim.ours(Values(own)).verdict == verdict


def test_another_model_is_not_the_one_of_table_1():
    (claim,) = (one for one in CLAIMS if "Table I " in one.words)
    model = {"hidden_size": 5120, "layers": 40, "attention_heads": 40, "kv_heads": 40}
    for length, verdict in ((2048, HOLDS), (4096, FAILS)):
        settings = {"model": model | {"max_position_embeddings": length}}
        run = SimpleNamespace(id="one", settings=settings)
        own = [
            compared(point, point.value, run)
            for point in points(("3c",))
            if point.settings["model.name"] == "opt-13b"
        ]
        assert claim.ours(Values(own)).verdict == verdict


@pytest.mark.parametrize(("share", "verdict"), [(0.0999, True), (0.1, True), (0.1004, False)])
def test_a_share_is_judged_before_it_is_rounded(share, verdict):
    assert within(share, 0.1) == verdict
    assert within(-share, 0.1) == verdict


def test_v_before_k_refutes_that_it_is_later(monkeypatch):
    claim = claims_of("6b", "later than K")
    exchanged = [(step, K_READ + V_READ - kind, *rest) for step, kind, *rest in DECODE]
    assert judged_by(monkeypatch, claim, reads(*PREFILL, *DECODE)) == HOLDS
    assert judged_by(monkeypatch, claim, reads(*PREFILL, *exchanged)) == FAILS


SET_BY_THE_MODEL = {
    "at the same time": HOLDS,
    "buffers": HOLDS,
    "increasing order": HOLDS,
    "later than K": HOLDS,
    "Prefill reads nothing": FAILS,
}


@pytest.mark.parametrize(("words", "measured"), SET_BY_THE_MODEL.items())
def test_values_that_the_model_sets_tell_nothing_about_accesses(monkeypatch, words, measured):
    claim, events = claims_of("6b", words), reads(*PREFILL, *DECODE)
    assert judged_by(monkeypatch, claim, events, MODELED) == UNKNOWN
    assert judged_by(monkeypatch, claim, events, MEASURED) == measured


def test_a_modeled_decode_pass_tells_nothing_of_one_that_is_recorded():
    (claim,) = (one for one in CLAIMS if "about 25 ms" in one.words)
    steps = pd.DataFrame({"phase": ["prefill", "decode"], "duration_s": [1.0, 0.025]})
    verdicts = {}
    for source in (MODELED, MEASURED):
        run = SimpleNamespace(id="one", time_source=source, steps=lambda repeat: steps)
        own = [compared(point, point.value, run) for point in points(("6a", "6b"))]
        verdicts[source] = claim.ours(Values(own)).verdict
    assert verdicts == {MODELED: UNKNOWN, MEASURED: HOLDS}


def test_each_device_is_judged_by_its_own_values():
    own = [compared(point, point.value) for point in points(("10a",))]
    flat = [compared(point, 1.0, device="cuda") for point in points(("10a",))]
    (result,) = (one for one in judged([*own, *flat]) if "scarce" in one["words"])
    verdicts = {device: finding.verdict for device, finding in result["ours"].items()}
    assert verdicts == {DEVICE: HOLDS, "cuda": FAILS}


@pytest.mark.parametrize(
    ("used", "prefill_tokens", "verdict"),
    [([90, 95, 80, 85], 1000, HOLDS), ([90, 95, 99, 85], 1000, IN_PART), ([1, 2, 3, 4], 5, FAILS)],
)
def test_use_falls_and_throughput_rises_at_an_eviction(used, prefill_tokens, verdict):
    """Pass 2 preempts, pass 3 prefills."""
    steps = pd.DataFrame(
        {
            **{"step": range(4), "kv_blocks_used": used, "duration_s": 1.0},
            "scheduled_tokens": [10, 10, 10, prefill_tokens],
            "phase": ["decode", "decode", "decode", "prefill"],
        }
    )
    lost = pd.DataFrame({"step": [2], "event": ["preempt"]})
    settings = {
        "workload": {"num_requests": 32, "prompt_tokens": 1500},
        "cache": {"blocks": 606},
        "overflow": {"name": "swap"},
    }
    run: Any = SimpleNamespace(settings=settings, steps=lambda _: steps, preemptions=lambda _: lost)
    claim = claims_of("abstract 4", "at intervals")
    assert claim.ours(Values([], [run])).verdict == verdict


def test_figures_have_anchors():
    assert anchor("3a") == "figure-3a"
    assert anchor("abstract 2a") == "figure-abstract-2a"
