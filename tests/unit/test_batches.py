"""Batches of a plan: what one process takes from settings to metrics."""

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.cli import workflow
from kvscope.plan import batches
from kvscope.tables.accounts import ANALYSED

from .plans import entry, manifest_of

# Measured and modeled experiments in any order; `together` numbers those that are compared.
PLANS = st.lists(
    st.fixed_dictionaries(
        {
            "batch": st.integers(0, 1),
            "together": st.integers(0, 4),
            "exclusive": st.integers(0, 1),
            "walltime_s": st.integers(1, 100),
            "share_s": st.integers(1, 100),
        }
    ),
    max_size=60,
).map(lambda all_: manifest_of(entry(f"e{n}", **needs) for n, needs in enumerate(all_)))
SLOTS = st.integers(1, 1000) | st.none()


def modeled(count: int) -> dict:
    return manifest_of(entry(f"e{n}", batch=1, share_s=n % 7) for n in range(count))


def all_batches(found: dict, kind: str, parts: int) -> list[list[str]]:
    return [batches.batch(found, kind, part, parts) for part in range(parts)]


@given(PLANS, SLOTS, SLOTS)
def test_every_experiment_is_in_one_batch_of_its_kind(found, nodes, cores):
    parts = batches.parts(found, nodes, cores)
    for kind in batches.KINDS:
        there = all_batches(found, kind, parts[kind])
        expected = [
            each["id"]
            for each in found["experiments"]
            if bool(each["resources"]["batch"]) == (kind == batches.MODELED)
        ]
        assert sorted(i for ids in there for i in ids) == sorted(expected)
        assert all(there), "no batch is empty"
        assert parts[kind] <= (nodes or cores or 1)


@given(PLANS, st.integers(1, 1000))
def test_measured_experiments_that_are_compared_are_in_one_batch(found, nodes):
    needs = {each["id"]: each["resources"] for each in found["experiments"]}
    holding = defaultdict(set)
    parts = batches.parts(found, nodes, None)[batches.MEASURED]
    for part, ids in enumerate(all_batches(found, batches.MEASURED, parts)):
        for i in ids:
            holding[needs[i]["together"], needs[i]["exclusive"]].add(part)
    assert all(len(parts) == 1 for parts in holding.values())


@given(PLANS, st.integers(1, 64))
def test_one_machine_measures_all_in_one_batch_however_many_cores_it_has(found, cores):
    measured = [each["id"] for each in found["experiments"] if not each["resources"]["batch"]]
    parts = batches.parts(found, None, cores)[batches.MEASURED]
    assert parts == bool(measured)
    assert sorted(i for ids in all_batches(found, batches.MEASURED, parts) for i in ids) == sorted(
        measured
    )


@given(st.integers(0, 200), st.integers(1, 10**6))
def test_modeled_experiments_are_spread_evenly_where_that_is_worth_an_import(count, slots):
    result = modeled(count)
    number = batches.count(result, batches.MODELED, slots)
    sizes = [len(ids) for ids in all_batches(result, batches.MODELED, number)]
    assert number <= slots
    if count:
        assert max(sizes) - min(sizes) <= 1
    if number > 1:
        assert min(sizes) >= batches.LEAST_IN_BATCH


def test_a_study_of_modeled_experiments_is_spread_over_the_slots_of_a_cluster():
    assert batches.count(modeled(37), batches.MODELED, 10_000) == 3
    assert batches.count(modeled(37), batches.MODELED, 1) == 1


@given(PLANS, SLOTS, SLOTS)
def test_a_name_says_which_experiments_a_batch_has(found, nodes, cores):
    for kind, parts in batches.parts(found, nodes, cores).items():
        for part, ids in enumerate(all_batches(found, kind, parts)):
            assert batches.of_name(found, batches.name("s", kind, part, parts)) == ids


@pytest.mark.parametrize(
    "name",
    [
        *("run_experiments s modeled 0", "run_experiments t modeled 0 1"),
        *("run_experiments s modeled 0 0", "run_experiments s other 0 1", "e1", ""),
    ],
)
def test_a_name_of_no_batch_has_no_experiments(name):
    assert batches.of_name(modeled(12), name) == []


def test_a_batch_needs_the_resources_of_its_largest_experiment_and_the_time_of_all():
    result = manifest_of(
        [
            entry("a", threads=4, memory_mib=100, parked_mib=10, share_s=5),
            entry("b", threads=1, memory_mib=300, parked_mib=30, share_s=7, gpus=1),
        ]
    )
    needs = batches.needs(result, batches.MEASURED, 0, 1)
    assert (needs["threads"], needs["gpus"]) == (4, 1)
    assert needs["memory_mib"] == 300 + 10 + 30, "all engines side by side"
    assert needs["walltime_s"] == batches.CAMPAIGN_S + 5 + 7
    assert (
        batches.needs(modeled(3), batches.MODELED, 0, 1)["walltime_s"]
        == batches.CAMPAIGN_S + 0 + 1 + 2
    )


def test_lines_of_a_batch_about_each_experiment_can_be_read():
    said = [
        batches.line(1, 3, "e1", 1.25, None),
        batches.line(2, 3, "e2", 0.5, "no room: 3 GiB (log: there)"),
        "Select jobs to execute...",
        "round 3 of 12, ± 7 %, 1 min 40 s left",
        "1 of 3 failed: e2",
    ]
    assert batches.ends("\n".join(said)) == {
        "e1": (1.2, None),
        "e2": (0.0, "no room: 3 GiB (log: there)"),
    }


@pytest.mark.parametrize("whole", [True, False])
def test_batches_are_made_again_if_an_experiment_lost_its_analysis(tmp_path: Path, whole: bool):
    markers = [tmp_path / "studies" / "s" / f"{kind}-0-of-1.done" for kind in batches.KINDS]
    markers[0].parent.mkdir(parents=True)
    for marker in markers:
        marker.touch()
    for number in range(3 if whole else 2):
        (tmp_path / "tables" / f"e{number}").mkdir(parents=True)
        (tmp_path / "tables" / f"e{number}" / ANALYSED).touch()
    workflow.withdraw_batches(modeled(3), tmp_path)
    assert [marker.exists() for marker in markers] == [whole, whole]
