"""The device `modeled`: the published runs, pass by pass, on a virtual clock."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvscope.collect.collector import collect_run
from kvscope.judge.checklist import checklist
from kvscope.judge.records import Records, read_records
from kvscope.metrics.experiment import analyse
from kvscope.plan.experiment import load
from kvscope.tables.runfile import read_run
from kvscope_kernels.oracles.registry import NAMES as ORACLES_OF_EVENTS
from kvscope_model.calibration.predict import predicted_s
from kvscope_model.calibration.recosting import Recosting
from kvscope_model.device import Modeled
from kvscope_model.hardware import hardware as data
from kvscope_model.hardware.cost import PassCost
from kvscope_model.hardware.overflow_cost import OverflowCost
from tests.engine.conftest import Run, Runner, directory_of
from tests.warm import Warm

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# The workload of Figure 10a of "Characterizing the Behavior and Impact of KV Caching on Transformer
# Inferences under Concurrency" (IPDPS 2025) with 6 GB of cache, and what its artifact has of it
# (github.com/Jye-525/UnBoxKV-IO, Q4e_gpu50): passes, resumptions, and tokens computed.
WORKLOAD = (
    *("device=modeled", "model=yarn-llama-2-7b", "batching=prefill_first", "workload=zipf"),
    *("workload.num_requests=128", "workload.min_tokens=512", "workload.max_tokens=2048"),
    *("workload.prompt_to_output_ratio=0.5", "engine.max_model_len=8192", "seed=1234"),
)
PUBLISHED = {"recompute": (6064, 167), "swap": (6001, 167)}
SMALL = (
    "device=modeled",
    "engine.max_num_seqs=8",
    "workload=uniform",
    "engine.max_model_len=192",
    "cache.blocks=14",
)
TABLES = ("requests", "steps", "batch", "preemptions", "layers", "workload")
COLLECTED = ("kv_events", "kv_kernels", "timeline")


@pytest.fixture(
    scope="module", params=["recompute", pytest.param("swap", marks=pytest.mark.thorough)]
)
def published(request, warm: Warm) -> tuple[str, Path]:
    words = [*WORKLOAD, f"overflow={request.param}", "cache.blocks=758"]
    return request.param, directory_of(warm, words, "modeled")


def table(directory: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(directory / f"{name}.parquet")


@pytest.mark.representative
def test_the_published_6_gb_runs_have_these_passes_and_resumptions(published):
    overflow, directory = published
    steps = table(directory, "steps")
    assert (len(steps), steps["resumed_requests"].sum()) == PUBLISHED[overflow]


def test_the_published_6_gb_runs_recompute_as_many_tokens(published):
    overflow, directory = published
    resumed = table(directory, "preemptions").query("event == 'resume'")
    # The artifact's total of tokens exceeds the 128,064 of the requests by 71,401; its rates are
    # rounded, and it counts a resumption's newest token, which was never in the cache.
    expected = 71_402 - 167 if overflow == "recompute" else 0
    assert resumed["recomputed_tokens"].fillna(0).sum() == expected


@pytest.mark.representative
def test_the_published_makespans_are_within_six_percent(published):
    _, directory = published
    steps = table(directory, "steps").iloc[-1]
    # Elapsed time of the last line of Q4e_gpu50: 119.8 s with either policy.
    assert steps["start_s"] + steps["duration_s"] == pytest.approx(119.8, rel=0.06)


def test_a_modeled_run_began_and_ended_by_the_wall_clock(published):
    _, directory = published
    facts = read_run(directory)
    clock, timings_s = facts["clock"], facts["timings_s"]
    took_s = (clock["run_end_utc_ns"] - clock["run_start_utc_ns"]) * 1e-9
    parts_s = sum(timings_s[part] for part in ("start_engine", "warm_up", "repeats"))
    assert parts_s <= took_s <= timings_s["total"]


def test_a_modeled_run_is_valid_and_says_that_it_is_modeled(published, tmp_path):
    _, directory = published
    analyse(directory, tmp_path)
    metrics = pd.read_parquet(tmp_path / "metrics.parquet")
    assert set(metrics["time_source"]) == {"modeled"}
    assert metrics["valid"].all(), metrics["reasons"].iloc[0]


@pytest.fixture(scope="module", params=["recompute", "swap"])
def traced(request, warm: Warm) -> list[Path]:
    """Two runs of one experiment, with every KV event, collected."""
    words = [*SMALL, f"overflow={request.param}", "workload.max_tokens=192", "tracing=full"]
    results = [directory_of(warm, words, f"twice-{i}") for i in range(2)]
    for directory in results:
        collect_run(directory, directory / "tables")
    return results


def test_every_record_of_two_runs_is_the_same_bytes(traced):
    first, second = traced
    assert len(table(first, "preemptions"))
    names = [f"{name}.parquet" for name in TABLES]
    names += ["kernel_events.jsonl.zst", *(f"tables/{name}.parquet" for name in COLLECTED)]
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_modeled_events_satisfy_the_oracles_of_measured_ones(traced):
    result = {one.name: one.state for one in checklist(read_records(traced[0]))}
    assert result["hit_not_in_table"] == "not applicable"  # there is no prefix cache
    assert {result[name] for name in {*ORACLES_OF_EVENTS} - {"hit_not_in_table"}} == {"held"}
    assert "violated" not in result.values()


def test_kernels_and_their_events_last_as_long_as_the_cost_model_says(traced):
    """A kernel's busiest multiprocessor has events from its start to its end."""
    directory, _ = traced
    experiment = load(directory / "experiment.yaml")
    device = experiment.device
    assert isinstance(device, Modeled)
    cost = device.cost(device.numbers, experiment).passes
    due_ns: dict[tuple[Any, str], float] = {}
    for step, rows in table(directory, "batch").groupby("step"):
        layer = cost.layer_cost(zip(rows["scheduled_tokens"], rows["context_tokens"], strict=True))
        due_ns |= {
            (step, "write"): layer.write_s * 1e9,
            (step, "attention"): layer.attention_s * 1e9,
        }
    kernels = table(directory, "tables/kv_kernels").set_index(["layer", "step", "kernel"])
    took = kernels["end_ns"] - kernels["start_ns"]
    assert len(took) == len(due_ns) * experiment.model.layers
    assert max(abs(took[key] - due_ns[key[1:]]) for key in took.index) <= 1  # cut to ns
    events = table(directory, "tables/kv_events")
    events["kernel"] = events["kind"].str.endswith("write").map({True: "write", False: "attention"})
    events["took"] = events["end_ns"] - events["start_ns"]
    worked = events.groupby(["layer", "step", "kernel", "worker"])["took"].sum()
    busiest = worked.groupby(["layer", "step", "kernel"]).max()
    assert (busiest == took[busiest.index]).all()


def test_layers_have_times_where_they_are_traced(traced, published):
    steps, layers = (table(traced[0], name) for name in ("steps", "layers"))
    assert set(layers["step"]) == set(steps["step"])
    spent = layers.groupby("step")["duration_s"].sum()
    assert (spent <= steps.set_index("step")["forward_s"] + 1e-9).all()
    assert table(published[1], "layers").empty


# Passes of so small a model are bound by their launches.
OTHER = {
    **{"layer_launch_s": 4e-4, "request_s": 9e-5, "between_passes_s": 3e-4},
    **{"memory_bytes_per_s": 4e11, "gemm_flops_per_s": 3e12, "copy_issue_s": 1e-6},
    **{"pinned_copy_s": 9e-6, "pinned_out_bytes_per_s": 2e7, "pinned_in_bytes_per_s": 7e8},
    **{"pageable_copy_s": 2e-6, "pageable_out_bytes_per_s": 5e8},
}
NANOSECONDS: dict[str, Any] = {
    "rtol": 1e-5,
    "atol": 1e-8,
}  # to which the virtual clock rounds each wait
POOL = "overflow.host_gib=0.0625"
# With so small a pool and such copies all three actions occur, if recomputing needs its own passes.
MIXTURE = ("overflow=adaptive", "batching=prefill_first", "overflow.host_blocks=6")
MIXED_COPIES = {"per block": "pinned_copy_s: 6.0e-6", "coalesced": "pinned_copy_s: 3.0e-5"}
OVERFLOWS = {
    "recomputed": ("overflow=recompute", "batching=mixed"),
    "swapped, chunked": ("overflow=swap", POOL, "batching=chunked", "batching.chunk_tokens=40"),
    "swapped, coalesced": ("overflow=swap", POOL, "overflow.copies=coalesced"),
    "swapped, pageable": ("overflow=swap", POOL, "overflow.host_memory=pageable"),
    "rebuilt": ("overflow=activation", POOL),
    "rebuilt, chunked": (
        "overflow=activation",
        POOL,
        "batching=chunked",
        "batching.chunk_tokens=40",
    ),
    "rebuilt, pageable": ("overflow=activation", POOL, "overflow.host_memory=pageable"),
    # The choice is by numbers of its own, which stay as they are.
    "mixture, coalesced": (
        *(*MIXTURE, "overflow.copies=coalesced", "overflow.hardware=a100-40gb"),
        f"overflow.constants={{{MIXED_COPIES['coalesced']}}}",
    ),
}


def recosted(directory: Path, **constants: float) -> Records:
    """The records of a run as a device with these constants would have made them."""
    experiment = load(directory / "experiment.yaml")
    assert isinstance(experiment.device, Modeled)
    hardware = experiment.device.numbers.model_copy(update=constants)
    repeat = next(read_records(directory).repeats())
    assert len(repeat.preemptions)
    return Recosting(repeat, experiment).records(hardware)


def assert_same_times(found: Records, due: Records) -> None:
    for name in ("steps", "requests", "preemptions"):
        # Stalls, and waits and costs of a preemption, are not judged anew.
        left = {"preemptions": ["wait_s", "cost_s"], "steps": ["stalled"]}.get(name, [])
        one, other = (getattr(records, name).drop(columns=left) for records in (found, due))
        pd.testing.assert_frame_equal(one, other, **NANOSECONDS)


@pytest.fixture(scope="module", params=list(OVERFLOWS))
def overflowing(request, warm: Warm) -> tuple[list[str], Path]:
    words = [*SMALL, "workload.max_tokens=192", *OVERFLOWS[request.param]]
    return words, directory_of(warm, words, "usual")


def test_durations_computed_anew_are_those_of_the_run(overflowing):
    _, directory = overflowing
    assert_same_times(recosted(directory), read_records(directory))


def test_recosted_records_are_those_of_a_run_on_that_hardware(warm: Warm, overflowing):
    words, usual = overflowing
    constants = ", ".join(f"{name}: {value}" for name, value in OTHER.items())
    other = directory_of(warm, [*words, f"device.constants={{{constants}}}"], "other")
    result = recosted(usual, **OTHER)
    assert result.steps["duration_s"].sum() > 1.1 * table(usual, "steps")["duration_s"].sum()
    assert_same_times(result, read_records(other))


@pytest.mark.parametrize("overflow", ["activation", "adaptive"])
def test_a_sample_of_the_bootstrap_is_as_a_device_of_its_numbers(warm: Warm, overflow: str):
    """The choices of `adaptive` are the same by both."""
    words = [*SMALL, f"overflow={overflow}", POOL, "workload.max_tokens=192", "cache.block_size=32"]
    usual = directory_of(warm, words, "usual")
    sample = data.read("a100-40gb").bootstrap[4]
    constants = ", ".join(f"{name}: {value!r}" for name, value in sample.items())
    other = directory_of(warm, [*words, f"device.constants={{{constants}}}"], "other")
    result, expected = recosted(usual, **sample), read_records(other)
    assert_same_times(
        result.variant(preemptions=result.preemptions.drop(columns="predicted_s")),
        expected.variant(preemptions=expected.preemptions.drop(columns="predicted_s")),
    )


@pytest.mark.parametrize("kept", ["rebuilt", "mixture, coalesced"])
def test_metrics_of_kept_activations_have_the_interval_of_the_bootstrap(warm: Warm, kept, tmp_path):
    words = [*SMALL, *OVERFLOWS[kept], "workload.max_tokens=192"]
    metrics = analyse(directory_of(warm, words, "usual"), tmp_path).set_index("metric")
    timed = ["makespan_s", "resume_overhead_net_s", "save_s", "rebuild_s"]
    result = metrics.loc[timed, ["value", "ci_low", "ci_high"]].astype(float)
    assert (result["value"] > 0).sum() >= 3
    assert (result[result["value"] == 0] == 0).all(axis=None)
    # Launches, of which so small a model's rebuilding consists, are not fitted.
    assert (result["ci_low"] < result["ci_high"]).tolist()[:3] == [True] * 3
    assert (result["ci_low"] <= result["value"]).all()
    assert (result["ci_high"] >= result["value"]).all()


@pytest.mark.parametrize("overflow", ["swap", "activation"])
def test_predicted_passes_of_a_run_are_those_of_the_modeled_device(warm: Warm, overflow: str):
    words = [*SMALL, f"overflow={overflow}", POOL, "overflow.host_memory=pageable"]
    words += ["device.kernels=vllm", "workload.max_tokens=192"]
    directory = directory_of(warm, words, "predicted")
    experiment = load(directory / "experiment.yaml")
    assert isinstance(experiment.device, Modeled)
    repeat = next(read_records(directory).repeats())
    assert len(repeat.preemptions)
    result = predicted_s(experiment.device.numbers, experiment, repeat)
    # A prediction takes the tokens of a request as saved in one copy; a few lie in two stretches.
    near = {"swap": 1e-5, "activation": 0.02}[overflow]
    due_s = repeat.steps["forward_s"].to_numpy()
    assert result == pytest.approx(due_s, rel=near, abs=1e-8)
    assert result.sum() == pytest.approx(due_s.sum(), rel=1e-3)


def test_metrics_have_the_interval_of_the_bootstrap(published, tmp_path):
    _, directory = published
    metrics = analyse(directory, tmp_path).set_index("metric")
    for name in ("makespan_s", "resume_overhead_as_published_s", "resume_overhead_net_s"):
        value, low, high = map(float, metrics.loc[name, ["value", "ci_low", "ci_high"]])
        assert 0.9 * value < low <= value <= high < 1.1 * value
        assert low < high


@pytest.mark.parametrize(
    ("batching", "overflow"),
    [
        ("prefill_first", "swap"),
        ("prefill_first", "activation"),
        ("mixed", "recompute"),
        ("chunked", "activation"),
    ],
)
def test_modeled_passes_are_those_of_the_model_computed(run: Runner, batching, overflow):
    shared = (
        *(f"batching={batching}", f"overflow={overflow}", "cache.blocks=13", "repeats=1"),
        *("batching.chunk_tokens=40",) * (batching == "chunked"),
        *("overflow.host_gib=0.0625",) * (overflow != "recompute"),
    )
    computed = run("cache.admission=vllm-0.4.2", "cache.watermark=0.01", *shared)
    modeled = run("device=modeled", "cache.layout=by_layer", "warmup=0", *shared)
    columns = ["step", "request_id", "phase", "scheduled_tokens", "context_tokens", "resumed"]
    pd.testing.assert_frame_equal(rows(computed, columns), rows(modeled, columns))


def test_activations_take_the_times_of_the_cost_model(run: Runner):
    words = ("overflow=activation", "cache.blocks=13", "overflow.host_gib=0.0625")
    made = run("device=modeled", "cache.block_size=32", "repeats=1", "warmup=0", *words)
    experiment = load(made.directory / "experiment.yaml")
    assert isinstance(experiment.device, Modeled)
    passes = PassCost(experiment.device.numbers, experiment.model)
    cost = OverflowCost(passes, 32, 1, "pinned", False)
    back = made.records.preemptions.query("event == 'resume'")
    back = back.merge(made.records.copied_back, on=["repeat", "step", "request_id"])
    assert len(back)
    for tokens, fetched_s, rebuilt_s in back[["tokens", "copy_s", "rebuild_s"]].to_numpy():
        assert fetched_s == pytest.approx(cost.fetch_s(-(-int(tokens) // 32), 1)[0])
        assert rebuilt_s == pytest.approx(cost.rebuild_s(int(tokens)))
    steps = made.records.steps.merge(made.records.saved, on=["repeat", "step"])
    decoded = steps.query("phase == 'decode'")
    for tokens, saved_s in decoded[["scheduled_tokens", "copy_s"]].to_numpy():
        assert saved_s == pytest.approx(cost.save_s(int(tokens), int(tokens))[0])


def test_adaptive_takes_a_possible_action_and_records_its_expectation(run: Runner):
    """All three actions occur; the oracles of `run` hold for the mixture."""
    words = (*SMALL, *MIXTURE, "cache.block_size=16", "workload.num_requests=16")
    lengths = ("workload.max_tokens=192", "repeats=1", "warmup=0")
    mixture = run(*words, *lengths, f"device.constants={{{MIXED_COPIES['per block']}}}")
    assert set(mixture.records.preemptions["policy"]) == {"recompute", "swap", "activation"}
    # By the device's own constants, copies cost what was predicted.
    back = mixture.records.preemptions.query("event == 'resume' and policy != 'recompute'")
    assert back["cost_s"].to_numpy() == pytest.approx(back["predicted_s"].to_numpy())


def rows(run: Run, columns: list[str]) -> pd.DataFrame:
    result = run.table("batch")
    return result.loc[result["repeat"] == 0, columns].reset_index(drop=True)
