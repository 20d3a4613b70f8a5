"""What the report claims: only what the confidence intervals support."""

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope import tables
from kvscope.plan.figures import Axes
from kvscope.plan.question import Question
from kvscope.report.comparisons import pairs
from kvscope.report.data import FigureRequest, Run, StudyData
from kvscope.report.findings import SENTENCES, findings
from kvscope.report.headline import headline, rule


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
        return Run(name, name, varied, Path(), status="failed")
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
    return Run(name, name, varied, Path(), metrics=metrics, **more)


def study(*runs):
    keys = tuple(dict.fromkeys(key for one in runs for key in one.varied))
    return StudyData("s", "S", "", keys, runs)


APART = (
    "Not measured in the same rounds: the intervals do not have in them what the machine did "
    "between the experiments."
)


def sentences(given):
    """All but that the experiments have no rounds in common, which none here has."""
    return [sentence for sentence in findings(given).sentences if sentence != APART]


def blocks(count, *more, **others):
    return run({"cache.blocks": count}, *more, **others)


def test_a_difference_beyond_the_intervals_is_told_with_its_range():
    found = sentences(study(blocks(64, (95, 100, 105)), blocks(8, (76, 80, 84), preemptions=23.0)))
    assert found == [
        "KV cache (blocks) 8 instead of 64: 20\xa0% lower throughput (16\xa0% "
        "to 24\xa0%); 23 preemptions a repeat instead of 0."
    ]


NAN = float("nan")


@pytest.mark.parametrize("source", ["modeled", "measured"])
def test_only_modeled_numbers_are_compared_without_an_interval(source):
    once = [blocks(count, (NAN, value, NAN)) for count, value in ((64, 100), (8, 80))]
    for one in once:
        one.metrics["time_source"] = source
    found = {
        "modeled": "KV cache (blocks) 8 instead of 64: 20\xa0% lower throughput.",
        "measured": "KV cache (blocks) 8 instead of 64: throughput not compared, "
        "an interval is missing.",
    }
    assert sentences(study(*once)) == [found[source]]


def test_a_higher_throughput_is_told_alike():
    (found,) = sentences(study(blocks(64, (99, 100, 101)), blocks(128, (149, 150, 151))))
    assert "50\xa0% higher throughput (49\xa0% to 51\xa0%)" in found


def test_an_interval_with_1_in_it_is_no_difference_and_says_what_there_may_be():
    (found,) = sentences(study(blocks(64, (80, 100, 120)), blocks(8, (70, 85, 100))))
    assert found == (
        "KV cache (blocks) 8 instead of 64: no difference in throughput beyond the noise "
        "(28\xa0% lower to 1.4\xa0% higher)."
    )


def test_an_interval_that_reaches_below_zero_supports_no_claim():
    (found,) = sentences(study(blocks(64, (-10, 100, 210)), blocks(8, (1, 2, 3))))
    assert "no difference" in found


def test_a_ratio_without_an_upper_end_is_told_by_its_lower_one():
    (found,) = sentences(study(blocks(64, (-0.1, 1, 2.1)), blocks(8, (3, 4, 5))))
    assert "higher throughput (at least 89\xa0%)" in found


def test_without_intervals_nothing_is_compared():
    nan = float("nan")
    (found,) = sentences(study(blocks(64, (nan, 100, nan)), blocks(8, (nan, 50, nan))))
    assert "not compared" in found


def test_an_experiment_that_is_not_valid_is_not_compared_and_said_so():
    doubtful = blocks(8, (76, 80, 84), valid=False, reasons="no_warm_up")
    found = sentences(study(blocks(64, (95, 100, 105)), doubtful))
    assert found[0] == "No comparison: 1 experiment valid, two are needed."
    assert "1 experiment is not valid and therefore not compared" in found[1]
    assert "no_warm_up: there was no warm-up" in found[1]


def test_a_failed_experiment_is_not_compared():
    found = sentences(study(blocks(64, (95, 100, 105)), blocks(8)))
    assert found == ["No comparison: 1 experiment valid, two are needed."]


def test_experiments_that_differ_in_two_keys_are_not_compared():
    one = run({"cache.blocks": 64, "batching": "mixed"}, (95, 100, 105))
    other = run({"cache.blocks": 8, "batching": "chunked"}, (45, 50, 55))
    assert sentences(study(one, other)) == [
        "No comparison: no two valid experiments differ in one key alone."
    ]


def test_a_key_that_comes_with_an_option_is_told_with_it():
    mixed = run({"batching": "mixed", "batching.chunk_tokens": None}, (95, 100, 105))
    chunked = run({"batching": "chunked", "batching.chunk_tokens": 64}, (76, 80, 84))
    larger = run({"batching": "chunked", "batching.chunk_tokens": 128}, (60, 90, 120))
    found = sentences(study(mixed, chunked, larger))
    assert found[0].startswith("Chunked (64 tokens) instead of mixed: 20")
    assert found[1].startswith("Chunked (128 tokens) instead of mixed: no")
    assert found[2].startswith("Chunk (tokens) 128 instead of 64 (chunked): no")
    assert len(found) == 3


def test_a_key_that_only_one_has_without_its_option_is_a_difference():
    fixed = run({"workload": "fixed", "cache.blocks": 64, "cache.gib": None}, (95, 100, 105))
    other = run({"workload": "zipf", "cache.blocks": None, "cache.gib": 2}, (45, 50, 55))
    assert not list(pairs(study(fixed, other)))


def test_many_pairs_of_one_change_are_summed_up():
    runs = [
        run({"seed": seed, "cache.blocks": count}, (value - 1, value, value + 1))
        for seed in range(6)
        for count, value in ((64, 100), (8, 80 + 4 * seed))
    ]
    found = sentences(study(*runs))
    summary = next(sentence for sentence in found if sentence.startswith("KV cache"))
    assert summary == (
        "KV cache (blocks) 8 instead of 64, 6 pairs: lower throughput in 5 (by 4.0\xa0% to "
        "20\xa0%, each ± 0.9\xa0% or less), no difference beyond the noise in 1, ± 0.9\xa0%."
    )


RECOMPUTE = {"overflow": "recompute", "overflow.host_memory": None, "overflow.copies": None}
SWAP = {"overflow": "swap", "overflow.host_memory": "pinned", "overflow.copies": "per_block"}
ALIKE = (99, 100, 101)


def costing(settings, net, paper=ALIKE, **more):
    """A run of two preemptions, of a throughput as the others have."""
    return run(settings, ALIKE, preemptions=2.0, net=net, paper=paper, **more)


def at(size, policy, net, paper=ALIKE):
    return costing({"cache.block_size": size, **policy}, net, paper)


def test_what_a_policy_costs_is_told_by_both_measures_and_how_sure_it_is():
    (found,) = sentences(
        study(at(32, RECOMPUTE, (0.9, 1.0, 1.1)), at(32, SWAP, (0.55, 0.59, 0.63), (87, 88, 89)))
    )
    assert found == (
        "Swap (pinned, per block) instead of recompute (block size 32): 41\xa0% lower net "
        "resume overhead (36\xa0% to 46\xa0%), by the paper's measure 12\xa0% lower (11\xa0% to "
        "13\xa0%); no difference in throughput beyond the noise (0.91\xa0% lower to 0.92\xa0% "
        "higher); 2 preemptions a repeat."
    )


def test_two_measures_that_disagree_are_said_to():
    (found,) = sentences(
        study(at(32, RECOMPUTE, (0.9, 1.0, 1.1)), at(32, SWAP, (0.5, 0.6, 0.7), (149, 150, 151)))
    )
    assert "40\xa0% lower" in found
    assert "by the paper's measure 50\xa0% higher (49\xa0% to 51\xa0%), which disagrees;" in found


def test_overlapping_costs_are_no_difference_and_contradict_nothing():
    (found,) = sentences(
        study(at(32, RECOMPUTE, (0.5, 1.0, 1.5)), at(32, SWAP, (0.6, 0.8, 1.0), (149, 150, 151)))
    )
    assert "no difference in net resume overhead beyond the noise (" in found
    assert "disagrees" not in found


def test_costs_are_not_compared_where_one_side_never_preempts():
    ample = run({"cache.blocks": 64}, ALIKE, net=(0, 0, 0), paper=(0, 0, 0))
    (found,) = sentences(study(ample, costing({"cache.blocks": 8}, (1, 2, 3))))
    assert "overhead" not in found


def line(sizes_and_costs):
    """A study over block size: of each size, what recompute costs beside a swap of 10 ± 1."""
    runs = [
        one
        for size, cost in sizes_and_costs
        for one in (at(size, RECOMPUTE, (cost - 1, cost, cost + 1)), at(size, SWAP, (9, 10, 11)))
    ]
    return sentences(study(*runs))


def test_where_one_policy_overtakes_the_other_is_told_first():
    assert line([(4, 5), (8, 5), (16, 10), (32, 20), (64, 20)])[0] == (
        "By net resume overhead, recompute is cheaper up to block size 8, swap (pinned, per block) "
        "from 32 on; between them neither is beyond the noise."
    )


def test_neighbours_on_both_sides_of_a_crossing_have_nothing_between_them():
    assert line([(4, 20), (8, 5)])[0] == (
        "By net resume overhead, swap (pinned, per block) is cheaper up to block size 4, recompute "
        "from 8 on."
    )


def test_a_line_that_crosses_twice_is_told_point_by_point():
    assert line([(4, 5), (8, 20), (16, 5)])[0] == (
        "By net resume overhead, what is cheaper changes back and forth along block size (tokens): "
        "recompute at 4 and 16 and swap (pinned, per block) at 8."
    )


@settings(max_examples=30)
@given(st.lists(st.sampled_from([5, 10, 20]), min_size=2, max_size=6))
def test_a_crossing_is_claimed_only_with_one_side_cheaper_below_and_the_other_above(costs):
    sizes = [2**n for n in range(len(costs))]
    found = [text for text in line(list(zip(sizes, costs, strict=True))) if "cheaper" in text]
    clear = [(size, cost) for size, cost in zip(sizes, costs, strict=True) if cost != 10]
    assert bool(found) == (len({cost for _, cost in clear}) == 2)
    if found and "up to" in found[0]:
        until, since = map(int, re.findall(r"block size (\d+), .* from (\d+) on", found[0])[0])
        below = {cost for size, cost in clear if size <= until}
        above = {cost for size, cost in clear if size >= since}
        assert len(below) == len(above) == 1
        assert below != above
        assert not [size for size, _ in clear if until < size < since]


def test_many_pairs_of_a_policy_are_summed_up_by_both_measures():
    runs = [
        one
        for size in (2, 4, 8, 16, 32)
        for one in (
            at(size, RECOMPUTE, (9, 10, 11)),
            at(size, SWAP, (4, 5, 6), (149 + size, 150 + size, 151 + size)),
        )
    ]
    assert sentences(study(*runs))[0] == (
        "Swap (pinned, per block) instead of recompute, 5 pairs: net resume overhead lower in all "
        "5 (by 50\xa0%, each ± 8\xa0% or less); by the paper's measure higher in all 5 (by 52\xa0% "
        "to 82\xa0%, each ± 2\xa0% or less); the two measures disagree in 5; no difference in "
        "throughput beyond the noise in all 5, each ± 0.9\xa0% or less."
    )


def test_a_limit_of_the_engine_that_follows_from_the_requests_is_not_told():
    runs = [
        run(
            {"workload.prompt_tokens": n, "engine.max_model_len": 2 * n, "cache.blocks": count},
            (value - 1, value, value + 1),
        )
        for n in (8, 16)
        for count, value in ((64, 100), (8, 50))
    ]
    assert sentences(study(*runs))[0].startswith(
        "KV cache (blocks) 8 instead of 64 (8 prompt tokens):"
    )


def test_of_many_differences_the_first_are_listed_and_those_without_one_are_apart():
    count = SENTENCES + 5
    many = [blocks(n, (n - 0.1, n, n + 0.1)) for n in range(count, 0, -1)]
    found = findings(study(*many, blocks(99, (count - 0.1, count, count + 0.1))))
    assert len(found.differences) == SENTENCES + 1
    assert found.differences[-1] == f"{count - 1 - SENTENCES} more differences not listed here."
    assert len(found.unchanged) == 1
    assert found.unchanged[0].startswith("KV cache (blocks) 99 instead of")


def test_what_all_differences_have_in_common_is_said_once():
    runs = [
        run(
            {"seed": seed, "cache.blocks": count, "workload": "zipf"}, (value - 1, value, value + 1)
        )
        for seed, count, value in ((1, 64, 100), (1, 32, 80), (1, 16, 60), (2, 64, 100))
    ]
    found = findings(study(*runs))
    assert found.scope == "All comparisons below have seed 1, zipf:"
    assert [text.partition(":")[0] for text in found.differences] == [
        "KV cache (blocks) 32 instead of 64",
        "KV cache (blocks) 16 instead of 64",
    ]


def test_settings_that_single_pairs_share_are_not_claimed_of_several_pairs():
    """The cache is varied under one policy and prompt, the policy under three prompts."""
    rows = [
        ("a", 8, 64, 100),
        ("a", 16, 64, 90),
        ("a", 32, 64, 80),
        ("b", 8, 64, 120),
        ("b", 16, 64, 110),
        ("b", 32, 64, 99),
        ("a", 8, 32, 70),
        ("a", 8, 16, 50),
    ]
    runs = [
        run(
            {"batching": name, "workload.prompt_tokens": prompt, "cache.blocks": room},
            (value - 1, value, value + 1),
        )
        for name, prompt, room, value in rows
    ]
    found = findings(study(*runs))
    assert found.differences[0].startswith("B instead of a, 3 pairs:")
    assert found.scope == (
        "All comparisons below, but for those of several pairs, have a, 8 prompt tokens:"
    )


def test_a_cache_of_as_many_tokens_in_other_blocks_is_the_same_cache():
    small = run({"cache.block_size": 16, "cache.blocks": 64}, (95, 100, 105))
    large = run({"cache.block_size": 32, "cache.blocks": 32}, (76, 80, 84))
    (found,) = sentences(study(small, large))
    assert found.startswith("Block size (tokens) 32 instead of 16 (KV cache 1024 tokens): 20")


def test_the_negative_control_is_told_with_the_uncertainty():
    one = {"control": (-0.003, -0.001, 0.001), "uncertainty": (0.002, 0.004, 0.006)}
    two = {"control": (0.002, 0.005, 0.008), "uncertainty": (0.004, 0.006, 0.008)}
    none = {"control": (0, 0, 0), "uncertainty": (0, 0, 0)}  # its resuming passes decode nothing
    around = (95, 100, 105)
    runs = [blocks(n, around, **more) for n, more in ((8, one), (16, two), (32, none))]
    assert sentences(study(*runs))[-1] == (
        "Negative control in 2 experiments: passes that resume no request have a net resume "
        "overhead of -1 to 5 ms a repeat; the interval of 1 contains 0. The net overhead is "
        "uncertain by 4 to 6 ms."
    )


def asking(*runs, **question):
    return replace(study(*runs), question=Question(**question))


def policies_by_prompt():
    """Under `b` 20 and 80 % more than under `a`; `c` gives less, at the parts it is best with."""
    gives = {"c": (50, 50), "a": (100, 200), "b": (120, 360)}
    parts = {"a": 8, "b": 8, "c": 1}
    rows = [
        ({"device.policy": name, "device.minibatches": parts[name], "cache.blocks": room}, value)
        for name, values in gives.items()
        for room, value in zip((64, 32), values, strict=True)
    ]
    return [run(varied, (value - 1, value, value + 1)) for varied, value in rows]


ASKED = {"key": "device.policy", "base": "a", "along": ["device.minibatches"]}


def test_what_a_study_asks_about_comes_first_and_is_compared_with_its_base():
    plain, asked = study(*policies_by_prompt()), asking(*policies_by_prompt(), **ASKED)
    assert not any("instead of a" in sentence for sentence in sentences(plain))
    first, *_ = sentences(asked)
    assert first.startswith("Offload policy c instead of a (KV cache 64 blocks)")
    told = [sentence for sentence in sentences(asked) if "Offload policy" in sentence]
    assert told == sentences(asked)[: len(told)]
    assert len(told) == 4


def test_the_headline_answers_with_the_best_value_on_average():
    found = headline(asking(*policies_by_prompt(), **ASKED)).sentence
    assert found == (
        "Offload policy b instead of a: 47\xa0% (± 0.9) higher throughput, the geometric mean of 2 "
        "pairs: higher in all 2 (by 20\xa0% to 80\xa0%, each ± 1\xa0% or less)."
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
        ({"fixed": 0.6, "zipf": 1.0}, []),  # they differ in kind: one number for all
        ({"fixed": 0.6, "zipf": 1.5}, []),
        ({"fixed": 0.6}, []),
    ],
)
def test_the_headline_has_a_number_for_each_panel_of_its_chart(left, told):
    axes = Axes(x="cache.blocks", colour="batching", facet="workload")
    asked = asking(*scarce_by_workload(left), key="cache.blocks", base=64)
    found = headline(replace(asked, figures=(FigureRequest("throughput", (axes,)),))).sentence
    assert found.startswith("Half of the KV cache costs")
    assert re.findall(r"(\d+)\xa0% \(± [\d.]+\)[a-z ]* \((\w+)\)", found) == told


def test_the_page_says_that_the_headline_answers_the_question_if_one_is_asked():
    runs = policies_by_prompt()
    assert "the study's question" in rule(asking(*runs, **ASKED))
    assert rule(study(*runs)) == (
        "The headline is the largest difference along the axes of the first figure."
    )


def test_the_headline_claims_nothing_for_an_answer_within_the_noise():
    runs = [
        run({"device.policy": name}, (90, value, 110)) for name, value in (("a", 99), ("b", 101))
    ]
    runs.append(run({"device.policy": "c"}, (49, 50, 51)))
    found = headline(asking(*runs, key="device.policy", base="a")).sentence
    assert found == (
        "Offload policy b instead of a: no difference in throughput beyond the noise (6.9\xa0% "
        "lower to 12\xa0% higher)."
    )


def test_the_headline_of_a_metric_that_is_neither_good_nor_bad_has_its_extremes():
    runs = [
        run({"batching": name}, (90, 100, 110), amplification=value)
        for name, value in (("mixed", 1.48), ("chunked", 1.0), ("prefill_first", 1.2))
    ]
    asked = replace(study(*runs), figures=(FigureRequest("access_metrics", ()),))
    found = headline(asked).sentence
    assert found == "Tokens read per token held: 1 (chunked) to 1.48 (mixed)."
    assert "the least and the greatest value" in rule(asked)
