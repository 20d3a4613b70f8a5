"""Every member is placed once, and no pack violates a limit."""

import dataclasses
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from submitit_packs import sites
from submitit_packs.errors import BadSettings
from submitit_packs.model import Member, Pack
from submitit_packs.planner import Settings, affinity_of, makespan, plan
from submitit_packs.queue import Queue
from submitit_packs.sites import Site

POLARIS = sites.load("polaris")


def member(key="m", expected_s=300.0, timeout_s=600.0, **more) -> Member:
    return Member(key, key, "true", "/", expected_s, timeout_s, **more)


def grid(count: int, **more) -> list[Member]:
    return [member(f"m{i}", **more) for i in range(count)]


@st.composite
def members(draw) -> list[Member]:
    results = []
    for number in range(draw(st.integers(0, 25))):
        expected_s = draw(st.floats(1, 4 * 3600))
        results.append(
            member(
                f"m{number}",
                expected_s,
                expected_s * draw(st.floats(1, 1.5)),
                gpus=draw(st.sampled_from([0, 1, 1, 1, 2, 4])),
                exclusive=draw(st.booleans()),
            )
        )
    return results


@st.composite
def clusters(draw) -> Site:
    queues = []
    for name in draw(st.sampled_from(["a", "ab", "abc"])):
        least = draw(st.integers(1, 12))
        queues.append(
            Queue(
                name,
                least,
                least + draw(st.integers(0, 40)),
                300,
                draw(st.integers(2 * 3600, 24 * 3600)),
                draw(st.none() | st.integers(1, 4)),
            )
        )
    queues.append(Queue("last", 1, 500, 300, 9 * 3600))
    return Site("here", "slurm", gpus_per_node=4, queues=tuple(queues))


@given(members(), clusters(), st.floats(0, 1), st.floats(600, 8 * 3600))
def test_every_member_is_placed_once_and_no_limit_is_violated(found, site, min_fill, length_s):
    how = Settings(min_fill=min_fill, length_s=length_s)
    jobs = {"a": 1}
    planned = plan(found, site, how, jobs)
    placed = [m.key for pack in planned.packs for m in pack.members]
    assert sorted([*placed, *planned.waiting]) == sorted(m.key for m in found)
    for pack in planned.packs:
        queue = site.queue(pack.queue)
        assert queue.complaint(pack.nodes, pack.walltime_s) is None
        assert pack.walltime_s >= queue.min_walltime_s
        assert pack.walltime_s % 60 == 0
        assert pack.slots_per_node * max(1, pack.gpus_per_slot) <= site.gpus_per_node
        assert {m.exclusive for m in pack.members} == {pack.exclusive}
        assert not pack.exclusive or pack.slots_per_node == 1
        assert all(max(1, m.gpus) == pack.gpus_per_slot for m in pack.members)
        times_s = [m.expected_s for m in pack.members]
        assert makespan(times_s, pack.slots) + how.overhead_s <= pack.walltime_s
        longest_s = max(m.timeout_s for m in pack.members)
        assert longest_s + how.overhead_s <= pack.walltime_s
    for queue in site.queues:
        ours = sum(pack.queue == queue.name for pack in planned.packs)
        assert (
            queue.max_jobs is None
            or ours == 0
            or ours + jobs.get(queue.name, 0) <= (queue.max_jobs)
        )


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=40), st.integers(1, 12))
def test_the_makespan_is_between_its_bounds(times_s, slots):
    lower = max(max(times_s), sum(times_s) / slots)
    assert lower <= makespan(times_s, slots) * (1 + 1e-9)
    assert makespan(times_s, slots) <= sum(times_s) / slots + max(times_s)  # Graham 1969


@given(members(), clusters())
def test_a_pack_survives_the_disk(found, site):
    for pack in plan(found, site, Settings()).packs:
        plain = pack.as_json()
        assert Pack.from_json(plain) == pack


def test_a_small_study_goes_to_debug_and_a_large_one_to_prod():
    assert {p.queue for p in plan(grid(8), POLARIS, Settings()).packs} == {"debug"}
    large = plan(grid(2000), POLARIS, Settings(length_s=3 * 3600))
    assert {p.queue for p in large.packs} == {"prod"}
    assert all(p.nodes >= 10 for p in large.packs)


def test_a_queue_that_takes_ten_nodes_gets_ten():
    (pack,) = plan(grid(40), POLARIS, Settings(queues=("prod",))).packs
    assert (pack.nodes, pack.slots_per_node, pack.fill) == (10, 4, 1.0)


def test_members_follow_one_another_in_a_slot():
    (pack,) = plan(grid(16), POLARIS, Settings(queues=("debug",), length_s=3600)).packs
    assert len(pack.members) == 16
    assert pack.nodes <= 2


def test_a_pack_has_as_many_nodes_as_are_wanted_at_least_if_it_fills_them():
    how = Settings(queues=("debug",), min_nodes=2)
    assert [p.nodes for p in plan(grid(9), POLARIS, how).packs] == [2]
    assert [p.nodes for p in plan(grid(4), POLARIS, how).packs] == [1]
    assert [p.nodes for p in plan(grid(9), POLARIS, Settings(queues=("debug",))).packs] == [1]


def test_a_pack_with_few_members_waits_for_more():
    how = Settings(queues=("prod",), min_fill=0.9, wait_s=600)
    assert plan(grid(20), POLARIS, how, waited_s=10).waiting.keys() == {m.key for m in grid(20)}
    assert len(plan(grid(20), POLARIS, how, waited_s=601).packs) == 1


def test_a_full_queue_holds_back():
    planned = plan(grid(8), POLARIS, Settings(queues=("debug",)), {"debug": 2})
    assert planned.packs == ()
    assert set(planned.waiting.values()) == {"waits for queue debug, which takes 2 jobs"}


@pytest.mark.parametrize(
    ("members", "how", "sentence"),
    [
        (
            [member(timeout_s=3600)],
            Settings(queues=("debug",)),
            "m may take 01:00:00, with start and end of its job 01:02:00, and no queue allows "
            "that: debug (1 to 2 nodes, 01:00:00)",
        ),
        (
            [member(gpus=8)],
            Settings(),
            "m needs 8 GPUs on a node, and a node of polaris has 4",
        ),
        (
            [member()],
            Settings(queues=("quick",)),
            "queue is 'quick', and polaris has debug, debug-scaling, prod, preemptable, "
            "capacity, demand",
        ),
        (
            [member()],
            Settings(queues=("prod",), max_nodes=4),
            "m may take 00:10:00, with start and end of its job 00:12:00, and no queue allows "
            "that with 4 nodes at most: prod (10 to 496 nodes, 03:00:00)",
        ),
    ],
)
def test_a_job_that_no_queue_takes_is_reported_before_submission(members, how, sentence):
    with pytest.raises(BadSettings) as caught:
        plan(members, POLARIS, how)
    assert str(caught.value) == sentence


def test_the_walltime_of_prod_depends_on_its_nodes():
    prod = POLARIS.queue("prod")
    assert prod.complaint(24, 3 * 3600) is None
    assert prod.complaint(24, 3 * 3600 + 60) == (
        "03:01:00 on 24 nodes, and queue prod ends at 03:00:00"
    )
    assert prod.complaint(25, 6 * 3600) is None
    assert prod.complaint(9, 600) == "9 nodes, and queue prod takes 10 to 496"


def test_a_slot_has_the_processors_of_its_gpus():
    each = POLARIS.affinity
    assert affinity_of(each, 1, 4) == each
    assert affinity_of(each, 2, 2) == "list:24-31,56-63,16-23,48-55:8-15,40-47,0-7,32-39"
    assert affinity_of(each, 1, 1) == "list:24-31,56-63"
    assert affinity_of("none", 1, 4) == "none"


def test_ten_thousand_members_are_planned_within_seconds():
    results = [
        dataclasses.replace(m, expected_s=300 + (i * 7919) % 600, timeout_s=1800)
        for i, m in enumerate(grid(10_000))
    ]
    began = time.process_time()
    planned = plan(results, POLARIS, Settings(queues=("prod",), length_s=6 * 3600))
    assert time.process_time() - began < 10
    assert sum(len(p.members) for p in planned.packs) == 10_000
    assert math.isclose(min(p.fill for p in planned.packs), 1.0)
