"""What the report claims: only what the confidence intervals support."""

import re
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import pandas as pd
import pytest
from hypothesis import given as with_
from hypothesis import settings
from hypothesis import strategies as st

from kvscope import tables
from kvscope.plan.figures import Axes
from kvscope.plan.question import Question
from kvscope.report.comparisons import error_of_one_draw, pairs
from kvscope.report.data import FigureRequest, ReportedRun, StudyData
from kvscope.report.findings import MOST, findings, headline, rule
from kvscope.report.words import NBSP

from .report_fixture import compared


def run(
    varied,
    throughput=None,
    valid=True,
    preemptions=0.0,
    reasons="",
    net=None,
    paper=None,
    control=None,
    uncertainty=None,
    amplification=None,
    **more,
):
    """A complete run whose throughput is (low, value, high), and its overheads; None: it failed."""
    name = "-".join(map(str, varied.values()))
    if throughput is None:
        return ReportedRun(name, name, varied, Path(), status="failed")
    low, value, high = throughput
    rows = [
        ("throughput_tokens_per_s", value, low, high),
        ("preemptions", preemptions, preemptions, preemptions),
    ]
    measures = {"net": net, "as_published": paper}
    measures |= {"net_control": control, "net_uncertainty": uncertainty}
    if amplification is not None:
        rows.append(("kv_read_amplification", *3 * [amplification]))
    for measure, ends in measures.items():
        if ends:
            rows.append((f"resume_overhead_{measure}_s", ends[1], ends[0], ends[2]))
    frame = pd.DataFrame(rows, columns=["metric", "value", "ci_low", "ci_high"]).assign(
        experiment_id=name, unit="", repeats_valid=3, valid=valid, reasons=reasons,
        time_source="measured", run_sha256="0" * 64,
    )  # fmt: skip
    metrics = frame[tables.METRICS.names].set_index("metric", drop=False)
    return ReportedRun(name, name, varied, Path(), metrics=metrics, **more)


def study(*runs):
    keys = tuple(dict.fromkeys(key for one in runs for key in one.varied))
    return StudyData("s", "S", "", keys, runs, compared=compared(runs))


APART = "not measured in the same rounds"
NAN = float("nan")
CACHE = "KV cache 8 instead of 64 blocks"


def rows(given, metric="throughput_tokens_per_s"):
    """Change, where, difference and interval of the rows of a metric."""
    found = findings(given)
    return [
        tuple(text.replace(NBSP, " ") for text in (o.change, o.where, o.difference, o.interval))
        for o in (*found.differences, *found.unchanged)
        if o.metric.name == metric
    ]


def caveats(given):
    """What limits the comparisons, but for rounds: no experiments here have any in common."""
    return [text for text in findings(given).caveats if APART not in text]


def blocks(count, *more, **others):
    return run({"cache.blocks": count}, *more, **others)


def test_a_difference_beyond_the_intervals_is_a_row_with_its_interval():
    given = study(blocks(64, (95, 100, 105)), blocks(8, (76, 80, 84), preemptions=23.0))
    assert rows(given) == [(CACHE, "", "−20 %", "−24 % to −16 %")]
    assert rows(given, "preemptions") == [(CACHE, "", "+23 a repeat", "")]
    assert {found.verdict for found in findings(given).differences} == {"worse"}
    assert APART in " ".join(findings(given).caveats)


@pytest.mark.parametrize("source", ["modeled", "measured"])
def test_only_modeled_numbers_are_compared_without_an_interval(source):
    once = [blocks(count, (NAN, value, NAN)) for count, value in ((64, 100), (8, 80))]
    for one in once:
        one.metrics["time_source"] = source
    modeled = source == "modeled"
    assert rows(study(*once)) == ([(CACHE, "", "−20 %", "")] if modeled else [])
    missing = ["No comparison: an interval is missing."]
    assert caveats(study(*once)) == ([] if modeled else missing)


def test_a_higher_throughput_is_better():
    given = study(blocks(64, (99, 100, 101)), blocks(128, (149, 150, 151)))
    (found,) = findings(given).differences
    assert found.ratio
    assert (found.verdict, round(found.ratio.value, 6)) == ("better", 1.5)
    assert (found.ratio.low, found.ratio.high) == pytest.approx((1.49, 1.51), abs=0.01)


def test_an_interval_with_1_in_it_is_no_difference_and_says_what_there_may_be():
    given = study(blocks(64, (80, 100, 120)), blocks(8, (70, 85, 100)))
    assert not findings(given).differences
    assert rows(given) == [(CACHE, "", "−15 %", "−28 % to +1.4 %")]
    assert findings(given).unchanged[0].verdict == ""


def test_an_interval_that_reaches_below_zero_supports_no_claim():
    given = study(blocks(64, (-10, 100, 210)), blocks(8, (1, 2, 3)))
    assert not findings(given).differences


def test_a_ratio_without_an_upper_end_is_told_by_its_lower_one():
    given = study(blocks(64, (-0.1, 1, 2.1)), blocks(8, (3, 4, 5)))
    assert rows(given) == [(CACHE, "", "+300 %", "+89 % to +∞")]
    assert findings(given).differences


def test_an_experiment_that_is_not_valid_is_not_compared():
    doubtful = blocks(8, (76, 80, 84), valid=False, reasons="no_warm_up")
    given = study(blocks(64, (95, 100, 105)), doubtful)
    assert rows(given) == []
    assert caveats(given) == ["No comparison: 1 experiment valid, two are needed."]


def test_a_failed_experiment_is_not_compared():
    assert rows(study(blocks(64, (95, 100, 105)), blocks(8))) == []


def test_experiments_that_differ_in_two_keys_are_not_compared():
    one = run({"cache.blocks": 64, "batching": "mixed"}, (95, 100, 105))
    other = run({"cache.blocks": 8, "batching": "chunked"}, (45, 50, 55))
    assert rows(study(one, other)) == []
    assert caveats(study(one, other)) == [
        "No comparison: no two valid experiments differ in one key alone."
    ]


def test_a_key_that_comes_with_an_option_is_told_with_it():
    mixed = run({"batching": "mixed", "batching.chunk_tokens": None}, (95, 100, 105))
    chunked = run({"batching": "chunked", "batching.chunk_tokens": 64}, (76, 80, 84))
    larger = run({"batching": "chunked", "batching.chunk_tokens": 128}, (60, 90, 120))
    found = findings(study(mixed, chunked, larger))
    assert [one.change for one in found.differences] == ["Chunked (64 tokens) instead of mixed"]
    assert [(one.change, one.where) for one in found.unchanged] == [
        ("Chunked (128 tokens) instead of mixed", ""),
        ("Chunk 128 instead of 64 tokens", "chunked"),
    ]


def test_a_key_that_only_one_has_without_its_option_is_a_difference():
    fixed = run({"workload": "fixed", "cache.blocks": 64, "cache.gib": None}, (95, 100, 105))
    other = run({"workload": "zipf", "cache.blocks": None, "cache.gib": 2}, (45, 50, 55))
    assert not list(pairs(study(fixed, other)))


def test_several_pairs_of_one_change_are_a_row_of_their_geometric_mean_and_a_row_each():
    runs = [
        run({"seed": seed, "cache.blocks": count}, (value - 1, value, value + 1))
        for seed in range(6)
        for count, value in ((64, 100), (8, 80 + 4 * seed))
    ]
    found = findings(study(*runs))
    (row,) = found.differences
    assert (row.change, row.where) == (CACHE, "6 pairs: 5 lower, 1 no difference")
    shares = [0.8, 0.84, 0.88, 0.92, 0.96, 1.0]
    assert row.ratio
    assert row.ratio.value == pytest.approx(geometric_mean(shares))
    assert [one.ratio and one.ratio.value for one in found.pairs] == pytest.approx(shares)
    assert [one.where for one in found.pairs] == [f"seed {seed}" for seed in range(6)]
    assert not found.left_out


RECOMPUTE = {"overflow": "recompute", "overflow.host_memory": None, "overflow.copies": None}
SWAP = {"overflow": "swap", "overflow.host_memory": "pinned", "overflow.copies": "per_block"}
ALIKE = (99, 100, 101)
NET = "resume_overhead_net_s"
SWAPS = "Swap (pinned, per block) instead of recompute"


def at(size, policy, net, paper=ALIKE):
    """A run of two preemptions, of a throughput as the others have."""
    settings = {"cache.block_size": size, **policy}
    return run(settings, ALIKE, preemptions=2.0, net=net, paper=paper)


def test_what_a_policy_costs_is_told_by_both_measures():
    given = study(
        at(32, RECOMPUTE, (0.9, 1.0, 1.1)), at(32, SWAP, (0.55, 0.59, 0.63), (149, 150, 151))
    )
    given = replace(given, figures=(FigureRequest("resume_overhead", ()),))
    assert rows(given, NET) == [(SWAPS, "block size 32", "−41 %", "−46 % to −36 %")]
    published = "resume_overhead_as_published_s"
    assert rows(given, published) == [(SWAPS, "block size 32", "+50 %", "+49 % to +51 %")]
    verdicts = {one.metric.name: one.verdict for one in findings(given).differences}
    assert verdicts == {NET: "better", published: "worse"}


def test_where_one_side_never_preempts_the_difference_is_told():
    ample = run({"cache.blocks": 64}, ALIKE, net=(0, 0, 0), paper=(0, 0, 0))
    scarce = run({"cache.blocks": 8}, ALIKE, preemptions=2.0, net=(1, 2, 3), paper=ALIKE)
    assert rows(study(ample, scarce), NET) == [(CACHE, "", "+2 s", "+1 to +3")]
    (verdict,) = {one.verdict for one in findings(study(ample, scarce)).differences}
    assert verdict == "worse"


def test_where_neither_preempts_nothing_is_compared():
    two = [run({"cache.blocks": count}, ALIKE, net=(0, 0, 0)) for count in (64, 8)]
    assert rows(study(*two), NET) == rows(study(*two), "preemptions") == []


def offloading(work, seed, overflow, value, stored, preemptions=3.0):
    """A modeled run of a policy, with what vLLM's offloading stored."""
    one = run(
        {"workload": work, "seed": seed, "overflow": overflow},
        (NAN, value, NAN),
        preemptions=preemptions,
    )
    bytes_ = one.metrics.iloc[[0]].assign(metric="offload_stored_bytes", value=stored)
    metrics = pd.concat([one.metrics, bytes_]).assign(time_source="modeled")
    return replace(one, metrics=metrics.set_index("metric", drop=False))


def test_different_work_has_a_row_each_and_says_what_the_model_lacks():
    given = study(
        *(
            offloading(work, seed, overflow, value, stored)
            for work, gain in (("fixed", 103), ("conversation", 149))
            for seed in (1, 2)
            for overflow, value, stored in (("recompute", 100, 0.0), ("native", gain, 4.0))
        )
    )
    lacks = "without the host's time to submit copies, not modeled"
    change = "Native instead of recompute"
    assert rows(given) == [
        (change, f"fixed; 2 pairs: 2 higher; {lacks}", "+3.0 %", ""),
        (change, f"conversation; 2 pairs: 2 higher; {lacks}", "+49 %", ""),
    ]


def test_where_nothing_overflows_a_modeled_gain_is_none():
    given = study(
        *(
            offloading("fixed", seed, overflow, value, stored, preemptions)
            for seed, preemptions in ((1, 0.0), (2, 3.0))
            for overflow, value, stored in (("recompute", 100, 0.0), ("native", 104, 4.0))
        )
    )
    ((_, where, difference, _),) = rows(given)
    assert (where.endswith("1 pair not modeled"), difference) == (True, "+4.0 %")
    ample = study(*(one for one in given.runs if one.number("preemptions").value == 0))
    assert rows(ample) == []


def test_a_policy_that_stores_nothing_lacks_nothing():
    given = study(
        offloading("fixed", 1, "recompute", 100, 0.0), offloading("fixed", 1, "swap", 104, 0.0)
    )
    ((_, where, _, _),) = rows(given)
    assert "not modeled" not in where


def counted(*pairs_, time_source="modeled"):
    """Runs of the counts of preemptions of each seed, with 64 blocks and with 8."""
    return study(
        *(
            replace(
                one,
                metrics=one.metrics.assign(ci_low=NAN, ci_high=NAN, time_source=time_source),
            )
            for seed, counts in enumerate(pairs_)
            for blocks_, count in zip((64, 8), counts, strict=True)
            for one in [run({"seed": seed, "cache.blocks": blocks_}, ALIKE, preemptions=count)]
        )
    )


def test_one_count_of_0_does_not_make_a_mean_of_minus_100_percent():
    given = counted((73, 48), (22, 18), (4, 0))
    expected = (CACHE, "3 pairs: 3 lower; mean difference", "−11 a repeat", "")
    assert rows(given, "preemptions") == [expected]
    single = [one for one in findings(given).pairs if one.metric.name == "preemptions"]
    assert [one.difference.replace(NBSP, " ") for one in single] == [
        "−34 %",
        "−18 %",
        "−4 a repeat",
    ]


@settings(max_examples=20)
@with_(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=6))
def test_counts_with_zeros_are_compared_without_loss(counts):
    found = rows(counted(*counts), "preemptions")
    some = [(base, other) for base, other in counts if base or other]
    if not some:
        assert found == []
        return
    ((_, where, difference, _),) = found
    if len(some) > 1:
        assert where.startswith(f"{len(some)} pairs")
        assert ("mean difference" in where) == any(0 in pair for pair in some)
        assert difference != "−100 %"
    if "mean difference" in where:
        change = sum(other - base for base, other in some)
        assert difference[0] == ("−" if change < 0 else "+" if change > 0 else "0")


@pytest.mark.parametrize("asked", [None, Question(key="cache.blocks", base=64)])
def test_the_headline_of_counts_with_zeros_is_no_mean_of_them(asked):
    figures = (FigureRequest("preemptions", ()),)
    given = replace(counted((73, 48), (22, 18), (4, 0)), figures=figures, question=asked)
    said = headline(given).sentence.replace(NBSP, " ")
    expected = (
        "preemptions −11 a repeat, the mean difference of 3 pairs (3 lower)." if asked else ""
    )
    assert said.startswith(f"{CACHE}: ")
    assert expected in said
    given = replace(counted((0, 5)), figures=figures, question=asked)
    assert headline(given).sentence == f"{CACHE}: preemptions 0 → 5 a repeat (seed 0)."


def test_where_a_policy_overtakes_the_other_the_pairs_tell():
    costs = [(4, 5), (8, 5), (16, 10), (32, 20), (64, 20)]
    runs = [
        one
        for size, cost in costs
        for one in (at(size, RECOMPUTE, (cost - 1, cost, cost + 1)), at(size, SWAP, (9, 10, 11)))
    ]
    found = findings(study(*runs))
    (row,) = [one for one in found.differences if (one.metric.name, one.change) == (NET, SWAPS)]
    assert row.where == "5 pairs: 2 lower, 2 higher, 1 no difference"
    signs = {
        one.where: one.compared[0].sign
        for one in found.pairs
        if (one.metric.name, one.change) == (NET, SWAPS)
    }
    assert signs == {
        "block size 4": 1,
        "block size 8": 1,
        "block size 16": 0,
        "block size 32": -1,
        "block size 64": -1,
    }


def test_a_limit_of_the_engine_that_follows_from_the_requests_is_not_told():
    runs = [
        run(
            {"workload.prompt_tokens": n, "engine.max_model_len": 2 * n, "cache.blocks": count},
            (value - 1, value, value + 1),
        )
        for n in (8, 16)
        for count, value in ((64, 100), (8, 50))
    ]
    assert {one.where for one in findings(study(*runs)).pairs} == {
        "8 prompt tokens",
        "16 prompt tokens",
    }


def test_of_many_differences_the_first_are_shown_and_those_without_one_are_apart():
    count = MOST + 5
    many = [blocks(n, (n - 0.1, n, n + 0.1)) for n in range(count, 0, -1)]
    found = findings(study(*many, blocks(99, (count - 0.1, count, count + 0.1))))
    assert len(found.shown) == MOST
    assert len(found.more) == count - 1 - MOST
    assert [one.change for one in found.unchanged] == [f"KV cache 99 instead of {count} blocks"]


def test_a_cache_of_as_many_tokens_in_other_blocks_is_the_same_cache():
    small = run({"cache.block_size": 16, "cache.blocks": 64}, (95, 100, 105))
    large = run({"cache.block_size": 32, "cache.blocks": 32}, (76, 80, 84))
    ((change, where, *_),) = rows(study(small, large))
    assert change == "Block size 32 instead of 16 tokens"
    assert where == "KV cache 1024 tokens"


def asking(*runs, **question):
    asked = Question(**question)
    return replace(study(*runs), question=asked, compared=compared(runs, asked))


def policies_by_prompt():
    """Under `b` 20 and 80 % more than under `a`; `c` gives less, at the parts it is best with."""
    gives = {"c": (50, 50), "a": (100, 200), "b": (120, 360)}
    parts = {"a": 8, "b": 8, "c": 1}
    rows = [
        ({"device.hardware": name, "engine.max_num_seqs": parts[name], "cache.blocks": room}, value)
        for name, values in gives.items()
        for room, value in zip((64, 32), values, strict=True)
    ]
    return [run(varied, (value - 1, value, value + 1)) for varied, value in rows]


ASKED = {"key": "device.hardware", "base": "a", "along": ["engine.max_num_seqs"]}


def test_what_a_study_asks_about_comes_first_and_is_compared_with_its_base():
    plain, asked = study(*policies_by_prompt()), asking(*policies_by_prompt(), **ASKED)
    assert not any("instead of a" in change for change, *_ in rows(plain))
    changes = [one.change for one in findings(asked).differences]
    assert changes[:2] == ["Hardware c instead of a", "Hardware b instead of a"]


def test_the_headline_answers_with_the_best_value_on_average():
    found = headline(asking(*policies_by_prompt(), **ASKED)).sentence
    assert found == (
        "Hardware b instead of a: 47\xa0% (±\xa00.9) higher throughput, the geometric mean of 2 "
        "pairs (2 higher)."
    )


def scarce_by_workload(left):
    """Half of the cache under two batching policies; `left` of the throughput, by workload."""
    return [
        run(
            {"workload": workload, "batching": batching, "cache.blocks": blocks},
            (value - 1, value, value + 1),
        )
        for workload, share in left.items()
        for batching in ("mixed", "chunked")
        for blocks, value in ((64, 1000), (32, 1000 * share))
    ]


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ({"fixed": 0.6, "zipf": 0.8}, [("40", "fixed"), ("20", "zipf")]),
        ({"fixed": 0.6}, []),
    ],
)
def test_the_headline_has_a_number_for_each_panel_of_its_chart(left, told):
    axes = Axes(x="cache.blocks", colour="batching", facet="workload")
    asked = asking(*scarce_by_workload(left), key="cache.blocks", base=64)
    found = headline(replace(asked, figures=(FigureRequest("throughput", (axes,)),))).sentence
    assert found.startswith("KV cache 32 instead of 64 blocks: ")
    assert re.findall(r"(\d+)\xa0% \(±\xa0[\d.]+\)[a-z ]* \((\w+)\)", found) == told


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (1.0, "no difference in throughput beyond 1.0 % and the noise"),
        (1.5, "50 % (± 0.1) higher throughput (2 pairs)"),
    ],
)
@pytest.mark.parametrize("facet", ["workload", None])
def test_workloads_that_differ_in_kind_have_a_headline_each_and_no_mean(left, told, facet):
    axes = Axes(x="cache.blocks", colour="batching", facet=facet)
    runs = scarce_by_workload({"fixed": 0.6, "zipf": left})
    asked = asking(*runs, key="cache.blocks", base=64)
    found = headline(replace(asked, figures=(FigureRequest("throughput", (axes,)),))).sentence
    change = "KV cache 32 instead of 64 blocks"
    assert found.replace(NBSP, " ") == (
        f"fixed: {change}: 40 % (± 0.08) lower throughput (2 pairs); zipf: {change}: {told}."
    )


def drawn(*gains):
    """A policy in one room with several seeds, of whose throughput it has so much more."""
    return [
        run({"overflow": name, "seed": seed}, (value, value, value))
        for seed, gain in enumerate(gains)
        for name, value in (("recompute", 100.0), ("swap", 100.0 * gain))
    ]


def test_a_difference_within_what_another_seed_changes_is_no_verdict():
    found = findings(study(*drawn(1.02, 0.99)))
    assert {one.verdict for one in found.differences} == {""}
    assert {one.verdict for one in findings(study(*drawn(1.05, 1.06))).differences} == {"better"}


def test_the_error_of_one_draw_is_the_most_that_a_seed_is_off_the_mean_of_seeds():
    name = "throughput_tokens_per_s"
    assert error_of_one_draw(pairs(study(*drawn(1.0, 1.21))), name) == pytest.approx(0.1)
    assert error_of_one_draw(pairs(study(*drawn(1.3))), name) == 0.0


def test_the_page_says_that_the_headline_answers_the_question_if_one_is_asked():
    runs = policies_by_prompt()
    assert "the study's question" in rule(asking(*runs, **ASKED))
    assert rule(study(*runs)) == (
        "The headline is the largest difference along the axes of the first figure."
    )


def test_the_headline_claims_nothing_for_an_answer_within_the_noise():
    runs = [
        run({"device.hardware": name}, (90, value, 110)) for name, value in (("a", 99), ("b", 101))
    ]
    runs.append(run({"device.hardware": "c"}, (49, 50, 51)))
    found = headline(asking(*runs, key="device.hardware", base="a")).sentence
    assert found == (
        "Hardware b instead of a: no difference in throughput beyond the noise (6.9\xa0% "
        "lower to 12\xa0% higher)."
    )


@pytest.mark.packages
def test_the_headline_of_a_metric_that_is_neither_good_nor_bad_has_its_extremes():
    runs = [
        run({"batching": name}, (90, 100, 110), amplification=value)
        for name, value in (("mixed", 1.48), ("chunked", 1.0), ("prefill_first", 1.2))
    ]
    asked = replace(study(*runs), figures=(FigureRequest("access_metrics", ()),))
    found = headline(asked).sentence
    assert found == "Tokens read per token held: 1 (chunked) to 1.48 (mixed)."
    assert "the least and the greatest value" in rule(asked)
