"""Expected time of a run: by the model, and by measured runs."""

import os
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvscope.base.errors import BadInput
from kvscope.plan import batches, walltime
from kvscope.plan.experiment import Experiment, dump
from kvscope.plan.grid import expand
from kvscope.plan.manifest import experiment_path
from kvscope.plan.walltime import expected_s, once_s, share_s, walltimes_s
from kvscope.plan.work import Work, expected_work
from kvscope.tables import runfile
from kvscope.workload import requests

CONFIG = Path(__file__).parents[2] / "config"


@cache
def experiment(*overrides: str) -> Experiment:
    (planned,) = expand(None, list(overrides), CONFIG).experiments
    return planned.experiment


# Seconds of whole runs under Nsight Systems on a virtual machine of 2 cores (AMD EPYC).
SHORT = ("engine.max_model_len=512", "engine.max_num_batched_tokens=512")
ROOM = (*SHORT, "workload.num_requests=24", "cache.blocks=256,64", "batching=mixed,chunked")
FIXED = (*ROOM, "workload=fixed", "workload.prompt_tokens=128", "workload.output_tokens=128")
ZIPF = (*ROOM, "workload=zipf", "workload.min_tokens=64", "workload.max_tokens=512")
MEASURED_S = {
    FIXED: [34.9, 34.2, 44.1, 39.6],
    (*ZIPF, "workload.prompt_to_output_ratio=0.5"): [47.6, 75.9, 50.8, 56.5],
}


def test_the_model_is_near_what_was_measured() -> None:
    for words, measured_s in MEASURED_S.items():
        planned = expand(None, ["repeats=3", "engine.max_num_seqs=32", *words], CONFIG).experiments
        found = [expected_s(p.experiment) for p in planned]
        for expected, measured in zip(found, measured_s, strict=True):
            assert measured / 2 < expected < measured * 2
        assert sum(found) == pytest.approx(sum(measured_s), rel=0.3)


UNTIL_KNOWN = "repeats={min:3,until:0.05,budget_s:60}"


def test_twice_what_is_expected_is_enough_for_the_least_repeats_and_for_the_budget() -> None:
    least_s, expected = expected_s(experiment("repeats=3")), expected_s(experiment(UNTIL_KNOWN))
    assert least_s < expected
    assert 2 * expected > expected_s(experiment("repeats=1")) + 60
    spent = experiment("repeats={min:3,until:0.05,budget_s:0.1}")
    assert expected_s(spent) == least_s  # min repeats are made in any case
    assert expected_s(experiment(UNTIL_KNOWN), 3) == expected_s(experiment("repeats=3"))


def test_the_time_of_a_finished_run_counts_the_repeats_that_it_took(results: Path) -> None:
    ended_early = experiment(UNTIL_KNOWN)
    repeats = {"min": 3, "until": 0.05, "budget_s": 60, "measured": 3}
    finished(ended_early, results, 2 * expected_s(ended_early, 3), repeats=repeats)
    seconds = alone_s([ended_early, OTHER], results)
    assert seconds[ended_early.id] == pytest.approx(2 * expected_s(ended_early), abs=1)
    assert seconds[OTHER.id] == pytest.approx(2 * expected_s(OTHER), abs=1)


# Settings of a short run, and settings of a longer one.
LONGER = [
    ([], ["repeats=6"]),
    (["warmup=0"], ["warmup=2"]),
    ([], ["workload.num_requests=64"]),
    ([], ["workload.prompt_tokens=900"]),
    ([], ["workload.output_tokens=800"]),
    (["cache.blocks=512"], ["cache.blocks=32"]),
    ([], ["engine.max_num_seqs=2"]),
    (["device.threads=8"], ["device.threads=1"]),
    ([], ["model=llama-3.1-8b"]),
    (["device=cuda", "model=llama-3.1-8b"], ["model=llama-3.1-8b"]),
    ([], ["engine.attention=instrumented"]),
    (["batching=chunked"], ["batching=chunked", "batching.chunk_tokens=16"]),
    (["workload=zipf"], ["workload=zipf", "workload.theta=0.1"]),
    (["workload=zipf"], ["workload=uniform"]),
]


@pytest.mark.packages
@pytest.mark.parametrize(("short", "long"), LONGER)
def test_more_to_do_takes_longer(short: list[str], long: list[str]) -> None:
    assert expected_s(experiment(*short)) < expected_s(experiment(*long))


def test_a_run_waits_for_its_requests() -> None:
    slow = ["workload.arrival=poisson", "workload.rate_per_s=0.01", "repeats=2", "warmup=1"]
    assert expected_s(experiment(*slow)) > 3 * 16 / 0.01


def test_a_run_waits_for_the_last_request_of_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,arrival_s\n9,3,1000\n9,5,4600\n")
    words = ["workload=trace", f"workload.path='{path}'", "repeats=1", "warmup=0"]
    assert 3600 < expected_s(experiment(*words)) < 3700
    at_once = experiment(*words, "workload.arrival=all_at_once")
    assert expected_s(at_once) < 100
    assert expected_work(at_once) == Work(2, 18.0, 8.0, 5.0, 0.0)
    path.write_text("prompt_tokens,output_tokens\n9,5\n")
    with pytest.raises(BadInput, match="plan again"):
        expected_work(at_once)


DRAWN = [
    ["workload=fixed"],
    ["workload=uniform", "workload.prompt_to_output_ratio=1"],
    ["workload=uniform", "workload.prompt_to_output_ratio=20", "workload.min_tokens=2"],
    ["workload=zipf", "workload.theta=0.1", "workload.prompt_to_output_ratio=0.1"],
    ["workload=zipf", "workload.theta=0.6", "workload.max_tokens=1000"],
    ["workload=zipf", "workload.theta=0.9", "workload.prompt_to_output_ratio=5"],
]


@pytest.mark.parametrize("words", DRAWN, ids=" ".join)
def test_work_is_that_of_the_requests(words: list[str]) -> None:
    planned = experiment(*words, "workload.num_requests=3000")
    expected, built = expected_work(planned), requests.build(planned)
    outputs = [r.output_tokens for r in built]
    assert expected.requests == 3000
    prompt = sum(len(r.prompt_token_ids) for r in built)
    near = 0.33 if planned.workload.name == "zipf" else 0.05
    assert expected.prompt_tokens == pytest.approx(prompt, rel=near)
    assert expected.output_tokens == pytest.approx(sum(outputs), rel=near)
    assert expected.longest_output == pytest.approx(max(outputs), rel=0.05)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def finished(planned: Experiment, results: Path, total: Any, **changes: Any) -> Path:
    """A finished run of an experiment, that took `total` seconds on this host."""
    path = experiment_path(planned.id, results)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump(planned))
    facts = {
        "experiment_id": planned.id,
        "status": "complete",
        "files": {},
        "hardware": {"hostname": platform.node()},
        "timings_s": {"total": total},
    }
    runfile.write_run(path.parent, facts | changes)
    return path.parent / runfile.RUN_FILE


ONE, OTHER = experiment("seed=1"), experiment("workload.num_requests=400")
OF_ANOTHER_MODEL = experiment("model=tiny-gqa")


def alone_s(planned: Sequence[Experiment], results: Path) -> dict[str, int]:
    """Expected time of each experiment by itself."""
    return {i: both["walltime_s"] for i, both in walltimes_s(planned, results).items()}


def test_nothing_was_measured(results: Path) -> None:
    found = walltimes_s([ONE, OTHER], results)
    assert found == {
        e.id: {"walltime_s": round(expected_s(e)), "share_s": round(share_s(e))}
        for e in (ONE, OTHER)
    }
    assert all(isinstance(seconds, int) for both in found.values() for seconds in both.values())


def test_the_time_of_a_campaign_run_counts_its_own_servings(results: Path) -> None:
    """Its engine served a warm-up and four repeats in twice the time; the start was shared."""
    repeats = [
        {"repeat": n, "start_ns": 0, "duration_s": 2 * once_s(ONE)} for n in range(4)
    ]  # fmt: skip
    finished(
        ONE,
        results,
        1e6,
        timings_s={"total": 1e6, "warm_up": 2 * ONE.warmup * once_s(ONE)},
        clock={"repeats": repeats},
        campaign={"id": "0" * 12, "design": "rounds", "members": [ONE.id], "reference": None},
    )
    seconds = walltimes_s([ONE, OTHER], results)
    for experiment in (ONE, OTHER):
        assert seconds[experiment.id]["share_s"] == pytest.approx(2 * share_s(experiment), abs=1)
        assert seconds[experiment.id]["walltime_s"] == pytest.approx(
            2 * expected_s(experiment), abs=1
        )


def test_a_finished_run_tells_its_own_time_and_the_ratio_of_others(results: Path) -> None:
    finished(ONE, results, 3 * expected_s(ONE))
    seconds = alone_s([ONE, OTHER, OF_ANOTHER_MODEL], results)
    assert seconds[ONE.id] == round(3 * expected_s(ONE))
    assert seconds[OTHER.id] == pytest.approx(3 * expected_s(OTHER), abs=1)
    assert seconds[OF_ANOTHER_MODEL.id] == round(expected_s(OF_ANOTHER_MODEL))


def test_runs_of_other_studies_tell_theirs_too_and_the_median_counts(results: Path) -> None:
    for seed, ratio in ((2, 0.5), (3, 2), (4, 100)):
        run = experiment(f"seed={seed}")
        finished(run, results, ratio * expected_s(run))
    assert alone_s([OTHER], results)[OTHER.id] == pytest.approx(2 * expected_s(OTHER), abs=1)


def test_another_host_tells_of_the_same_experiment_only(results: Path) -> None:
    finished(ONE, results, 3000, hardware={"hostname": "another"})
    assert alone_s([ONE, OTHER], results) == {ONE.id: 3000, OTHER.id: round(expected_s(OTHER))}


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "failed"},
        {"experiment_id": "another"},
        {"timings_s": {}},
        {"timings_s": {"total": 0}},
        {"timings_s": {"total": -5}},
        {"timings_s": {"total": "7"}},
        {"timings_s": None},
        {"hardware": []},
        {"schema": 99},
    ],
)
def test_what_is_no_measurement_tells_nothing(changes: dict[str, Any], results: Path) -> None:
    finished(ONE, results, 3000, **changes)
    assert alone_s([ONE, OTHER], results) == {e.id: round(expected_s(e)) for e in (ONE, OTHER)}


@pytest.mark.parametrize("content", ["", "[" * 100_000, "[]", '{"timings_s": 3}'])
def test_a_damaged_run_tells_nothing(content: str, results: Path) -> None:
    finished(ONE, results, 3000).write_text(content)
    assert alone_s([ONE, OTHER], results) == {e.id: round(expected_s(e)) for e in (ONE, OTHER)}


def test_a_damaged_experiment_tells_nothing_of_others(results: Path) -> None:
    run = finished(ONE, results, 3000)
    (run.parent / "experiment.yaml").write_text("[")
    assert alone_s([OTHER], results) == {OTHER.id: round(expected_s(OTHER))}


def test_the_newest_runs_count(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walltime, "MOST_RUNS", 2)
    for seed, ratio in ((2, 100), (3, 3), (4, 3)):
        run = experiment(f"seed={seed}")
        os.utime(finished(run, results, ratio * expected_s(run)), (seed, seed))
    assert alone_s([OTHER], results)[OTHER.id] == pytest.approx(3 * expected_s(OTHER), abs=1)


@pytest.mark.parametrize("total", [1e-9, 0.9e9, 1e300])
def test_a_walltime_is_a_whole_number_of_seconds(total: float, results: Path) -> None:
    """A record with more than 1e9 seconds is not read, and corrects nothing."""
    usual = alone_s([ONE], results)[ONE.id]
    finished(ONE, results, total)
    seconds = alone_s([ONE], results)[ONE.id]
    assert type(seconds) is int
    assert seconds == {1e-9: 1, 0.9e9: pytest.approx(0.9e9, rel=0.01), 1e300: usual}[total]


# Seconds of processor time that a study took, from `time snakemake`: user time on two cores of an
# AMD EPYC. What a plan says of a study is within a factor of two of it.
TOOK_S = {
    ("quickstart", "device=modeled"): 63,
    ("paper", "device=modeled"): 876,
    ("hybrid", ""): 1097,
}


@pytest.mark.packages
@pytest.mark.thorough
@pytest.mark.parametrize(("study", "word"), TOOK_S)
def test_a_modeled_study_takes_about_the_planned_time(study: str, word: str, results: Path) -> None:
    planned = [p.experiment for p in expand(study, [word] if word else [], CONFIG).experiments]
    needs = [both for both in walltimes_s(planned, results).values()]
    assert TOOK_S[study, word] / 2 < batches.expected_s(needs) < TOOK_S[study, word] * 2


MODELED = experiment("device=dry", "model=opt-13b")
MODELED_LONG = experiment("device=dry", "model=opt-13b", "workload.num_requests=4000")


@pytest.mark.parametrize("start_s", [0.02, 14.0])
def test_the_start_of_a_modeled_run_does_not_correct_others(start_s: float, results: Path) -> None:
    """Alone it imports vLLM, in a batch it does not; only servings are held against the model."""
    repeats = [{"repeat": 0, "start_ns": 0, "duration_s": 1.0}]
    timings = {"start_engine": start_s, "warm_up": 0.0, "repeats": once_s(MODELED), "total": 20.0}
    warmed = MODELED.warmup * once_s(MODELED)
    timings["warm_up"] = warmed
    finished(MODELED, results, 20.0, timings_s=timings, clock={"repeats": repeats})
    seconds = walltimes_s([MODELED, MODELED_LONG], results)
    for one in (MODELED, MODELED_LONG):
        assert seconds[one.id]["share_s"] == pytest.approx(share_s(one), abs=1)


def test_a_modeled_run_that_served_slower_says_so_of_others(results: Path) -> None:
    served_s = {"warm_up": MODELED_LONG.warmup, "repeats": 1}
    timings = {part: 3 * n * once_s(MODELED_LONG) for part, n in served_s.items()}
    repeats = [{"repeat": 0, "start_ns": 0, "duration_s": timings["repeats"]}]
    finished(MODELED_LONG, results, 9.0, timings_s=timings, clock={"repeats": repeats})
    seconds = walltimes_s([MODELED_LONG], results)[MODELED_LONG.id]["share_s"]
    start_s = walltime.MODELED_START_S
    assert seconds == pytest.approx(start_s + 3 * (share_s(MODELED_LONG) - start_s), abs=1)


def test_modeled_experiments_are_shared_between_cores() -> None:
    modeled = [{"share_s": 10, "batch": 1}] * 40
    assert batches.expected_s(modeled) == batches.CAMPAIGN_S + 400
    assert batches.shared_s(modeled, 1) is None
    assert batches.shared_s(modeled, 2) == batches.CAMPAIGN_S + 200
    assert batches.shared_s(modeled, 64) == batches.CAMPAIGN_S + 100  # ten at least in a batch
    assert batches.shared_s(modeled[:12], 2) is None
    assert batches.shared_s([*modeled, {"share_s": 10, "batch": 0}], 2) is None
