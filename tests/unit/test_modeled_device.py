"""The device `modeled` in the plan: the defaults that it sets, what is in its id, its batches."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope import batch, workflow
from kvscope.accounts import ANALYSED
from kvscope.errors import BadInput
from kvscope.plan import batches
from kvscope.plan.grid import expand
from kvscope.plan.resources import resources

CONFIG = Path(__file__).parents[2] / "config"
SMALL = ("engine.max_num_seqs=8",)


def planned(*words: str):
    (one,) = expand(None, ["device=modeled", *SMALL, *words], CONFIG).experiments
    return one.experiment


def test_it_sets_what_the_paper_ran_with():
    found = planned("overflow=swap")
    assert found.cache.admission == "vllm-0.4.2"
    assert (found.cache.watermark, found.cache.block_size) == (0.01, 16)
    assert found.cache.pieces(found.model.layers) == 2 * found.model.layers
    assert found.engine.max_num_batched_tokens == found.engine.max_model_len
    assert found.overflow.host_gib == 64


@pytest.mark.parametrize(
    ("word", "value"),
    [("cache.admission=vllm", "vllm"), ("cache.admission=vllm-0.4.2", "vllm-0.4.2")],
)
def test_what_it_sets_is_replaced_by_the_command_line(word: str, value: str):
    assert planned(word).cache.admission == value


def test_a_host_pool_is_set_only_for_a_policy_that_has_one():
    assert not hasattr(planned("overflow=recompute").overflow, "host_gib")


def test_other_devices_keep_their_defaults():
    (one,) = expand(None, [], CONFIG).experiments
    assert (one.experiment.cache.admission, one.experiment.cache.block_size) == ("vllm", 32)


def test_hardware_and_constants_are_in_the_id():
    ids = {
        planned().id,
        planned("device.hardware=h100").id,
        planned("device.constants={gemm_flops_per_s: 1.0e14}").id,
        planned("device.kernels=vllm").id,
    }
    assert len(ids) == 4
    assert "hardware_sha256" in json.loads(planned().canonical_json)["device"]


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("device.hardware=a100", "must be one of a100-40gb"),
        ("device.constants={speed: 1.0}", "device.constants"),
        ("device.constants={gemm_flops_per_s: -1.0}", "greater than 0"),
        ("cache.blocks=100000000", "must fit into"),
    ],
)
def test_what_cannot_be_modeled_is_refused(word: str, complaint: str):
    with pytest.raises(BadInput, match=complaint):
        planned(word)


def test_nothing_is_allocated():
    needs = resources(planned("model=opt-13b", "overflow=swap", "cache.blocks=820"))
    assert needs["memory_mib"] < 8192
    assert needs["batch"] == 1


def test_a_job_survives_the_way_to_its_process(tmp_path: Path):
    job = batch.Job(planned("overflow=swap"), tmp_path, force=True, tables=True)
    assert batch.Job.of_json(job.to_json()) == job


def test_modeled_experiments_share_a_process_and_measured_ones_never():
    modeled, (measured,) = planned(), expand(None, [], CONFIG).experiments
    assert batch.fits([modeled, modeled])
    assert not batch.fits([modeled])
    assert not batch.fits([modeled, measured.experiment])


def plan_of(count: int, batched: int = 1) -> dict:
    entries = [
        {"id": f"e{n}", "resources": {"batch": batched, "walltime_s": n % 7}} for n in range(count)
    ]
    return {"study": "s", "experiments": entries}


@given(st.integers(2, 200), st.integers(1, 10**6))
def test_batches_hold_every_modeled_experiment_once(count: int, slots: int):
    found = plan_of(count)
    number = batches.count(found, slots)
    parts = [batches.batch(found, part, number) for part in range(number)]
    assert sorted(i for part in parts for i in part) == sorted(f"e{n}" for n in range(count))
    assert 1 <= number <= slots
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if number > 1:
        assert min(map(len, parts)) >= batches.LEAST_IN_BATCH
    for part in range(number):
        assert batches.of_name(found, batches.name("s", part, number)) == parts[part]


def test_a_study_of_modeled_experiments_is_spread_over_the_slots_of_a_cluster():
    assert batches.count(plan_of(37), 10_000) == 3
    assert batches.count(plan_of(37), 1) == 1


def test_measured_or_single_experiments_are_in_no_batch():
    for found in (plan_of(5, batched=0), plan_of(1)):
        assert batches.batched(found) == []
        assert batches.count(found, 2) == 0


@pytest.mark.parametrize("name", ["run_batch s 0", "run_batch t 0 1", "run_batch s 0 0", "e1", ""])
def test_what_is_no_batch_of_a_plan_has_no_experiments(name: str):
    assert batches.of_name(plan_of(12), name) == []


def test_what_a_batch_says_of_each_experiment_can_be_read():
    said = [
        batches.line(1, 3, "e1", 1.25, None),
        batches.line(2, 3, "e2", 0.5, "no room: 3 GiB (log: there)"),
        "Select jobs to execute...",
        "1 of 3 failed: e2",
    ]
    assert batches.ends("\n".join(said)) == {
        "e1": (1.2, None),
        "e2": (0.0, "no room: 3 GiB (log: there)"),
    }


@pytest.mark.parametrize("whole", [True, False])
def test_a_batch_is_made_again_if_an_experiment_lost_its_analysis(tmp_path: Path, whole: bool):
    marker = tmp_path / "studies" / "s" / "batch-0-of-1.done"
    marker.parent.mkdir(parents=True)
    marker.touch()
    for number in range(3 if whole else 2):
        (tmp_path / "tables" / f"e{number}").mkdir(parents=True)
        (tmp_path / "tables" / f"e{number}" / ANALYSED).touch()
    workflow.withdraw_batches(plan_of(3), tmp_path)
    assert marker.exists() == whole


def test_what_a_device_sets_must_be_keys(tmp_path: Path):
    option = tmp_path / "device" / "mine.yaml"
    option.parent.mkdir()
    option.write_text("name: modeled\nsets:\n  cache.blokcs: 3\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"cache\.blokcs .*sets.* is not a key"):
        expand(None, ["device=mine"], tmp_path)
