"""Experiments that are measured together: properties, and a plain, slow reference."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.plan import pairs, together
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.plan.resources import PARKED_MIB, ZYGOTE_MIB, required_mib

CONFIG = Path(__file__).parents[2] / "config"
# Each axis is a section of the settings, or a key outside of all that are compared.
AXES = (
    *("cache.blocks=40,2000", "overflow=recompute,swap", "batching=mixed,chunked"),
    *("seed=1,2", "workload.num_requests=4,40", "repeats=3,5"),
)


@cache
def pool() -> tuple[Experiment, ...]:
    """64 experiments of different memory, of which some are comparable."""
    return tuple(planned.experiment for planned in expand(None, [*AXES], CONFIG).experiments)


@cache
def on_gpu() -> Experiment:
    (planned,) = expand(None, ["device=cuda"], CONFIG).experiments
    return planned.experiment


@st.composite
def studies(draw: st.DrawFn, least: int = 1) -> list[Experiment]:
    """Some experiments, in any order."""
    places = st.integers(0, len(pool()) - 1)
    result = draw(st.lists(places, min_size=least, max_size=20, unique=True))
    return [pool()[place] for place in result]


ROOM_MIB = st.integers(0, 20_000)


def need_mib(experiments: Iterable[Experiment]) -> int:
    """Memory that engines side by side take, with the process that forks them."""
    return ZYGOTE_MIB + sum(PARKED_MIB + required_mib(e) for e in experiments)


def sections_apart(one: Experiment, other: Experiment) -> set[str]:
    """The sections in which two experiments differ."""
    first, second = one.to_dict(), other.to_dict()
    return {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}


def comparable(one: Experiment, other: Experiment) -> bool:
    apart = sections_apart(one, other)
    return len(apart) == 1 and apart <= {*pairs.SECTIONS} and one.device.name == other.device.name


def parts(nodes: Iterable[str], edges: Iterable[tuple[str, str]]) -> set[frozenset[str]]:
    """The connected components of a graph, by joining them edge by edge."""
    result = {node: frozenset([node]) for node in nodes}
    for one, other in edges:
        joined = result[one] | result[other]
        result |= dict.fromkeys(joined, joined)
    return set(result.values())


@given(studies())
def test_comparisons_are_the_pairs_that_differ_in_one_section(experiments):
    expected = [
        {a.id, b.id} for a, b in combinations(experiments, 2) if comparable(a, b)
    ]  # fmt: skip
    results = [{*pair} for pair in pairs.of_sections(experiments)]
    assert sorted(map(sorted, results)) == sorted(map(sorted, expected))


@given(studies(), st.sampled_from(["cache.blocks", "overflow", "batching.name"]))
def test_comparisons_of_a_key_are_those_in_its_section(experiments, key):
    section = key.split(".")[0]
    expected = [
        [a.id, b.id]
        for a, b in combinations(experiments, 2)
        if comparable(a, b) and sections_apart(a, b) == {section}
    ]
    result = pairs.of_sections(experiments, key)
    assert sorted(map(sorted, result)) == sorted(map(sorted, expected))


@given(studies())
def test_comparisons_connect_experiments(experiments):
    result = pairs.connected(experiments)
    assert {*map(frozenset, result)} == parts(
        [e.id for e in experiments], pairs.of_sections(experiments)
    )
    order = [e.id for e in experiments]
    assert all([*ids] == sorted(ids, key=order.index) for ids in result)


@given(studies())
def test_connected_experiments_have_one_stopping_rule(experiments):
    """Therefore one block of rounds can serve a whole group of them."""
    rule = {e.id: e.stopping for e in experiments}
    assert all(len({rule[i] for i in ids}) == 1 for ids in pairs.connected(experiments))


@given(studies(), ROOM_MIB)
def test_every_experiment_is_measured_and_only_references_more_than_once(experiments, room):
    design = together.design(experiments, room)
    counts: dict[str, int] = defaultdict(int)
    for group in design.groups:
        assert len({*group}) == len(group)
        for i in group:
            counts[i] += 1
    assert counts.keys() == {e.id for e in experiments}
    assert {i for i, count in counts.items() if count > 1} == design.references


@given(studies(), ROOM_MIB)
def test_engines_that_stand_side_by_side_fit_in_memory(experiments, room):
    design, by_id = together.design(experiments, room), {e.id: e for e in experiments}
    groups = [[by_id[i] for i in group] for group in design.groups]
    if design.name == together.SITTINGS:
        largest = max(need_mib([e]) for e in experiments)
    else:
        largest = max(map(need_mib, groups))
    assert design.memory_mib == largest
    # A single engine is measured whatever it needs: `check_memory` refuses impossible ones.
    if design.name == together.GROUPS or (len(experiments) > 1 and design.name == together.ROUNDS):
        assert design.memory_mib <= room


@given(studies(least=2), ROOM_MIB)
def test_engines_stand_alone_only_where_memory_leaves_no_choice(experiments, room):
    design = together.design(experiments, room)
    assert (design.name == together.ROUNDS) == (need_mib(experiments) <= room)
    if design.name == together.SITTINGS:
        a_pair_fits = all(
            need_mib(pair) <= room
            for pair in combinations(experiments, 2)
        )  # fmt: skip
        assert not a_pair_fits


@given(studies(), ROOM_MIB)
def test_rounds_connect_all_that_comparisons_connect(experiments, room):
    """Two ratios to the same reference make a ratio, so a shared one connects groups."""
    design = together.design(experiments, room)
    shared = [pair for group in design.groups for pair in combinations(group, 2)]
    measured = parts([e.id for e in experiments], shared)
    for ids in pairs.connected(experiments):
        assert any({*ids} <= part for part in measured)


@given(studies(), ROOM_MIB)
def test_a_design_depends_on_nothing_else(experiments, room):
    assert together.design(experiments, room) == together.design([*experiments], room)


@given(studies())
def test_with_enough_memory_all_are_in_the_same_rounds(experiments):
    design = together.design(experiments, need_mib(experiments))
    assert design.name == together.ROUNDS
    assert design.groups == (tuple(e.id for e in experiments),)


@given(st.sampled_from(range(64)), ROOM_MIB)
def test_one_experiment_has_rounds_of_its_own(place, room):
    design = together.design([pool()[place]], room)
    assert (design.name, design.groups) == (together.ROUNDS, ((pool()[place].id,),))


@given(studies())
def test_engines_that_need_a_gpu_have_it_one_at_a_time(experiments):
    design = together.design([*experiments, on_gpu()], 1e9)
    assert design.name == together.SITTINGS
    assert design.groups == ((*(e.id for e in experiments), on_gpu().id),)
    assert together.design([on_gpu()], 1e9).name == together.ROUNDS


def test_a_large_study_fits_a_small_machine():
    """64 experiments on 24 GiB: groups that share a reference, of no more than the machine has."""
    words = [f"cache.blocks={','.join(map(str, range(1000, 1064)))}"]
    experiments = [planned.experiment for planned in expand(None, words, CONFIG).experiments]
    room = 24 * 1024 * together.MEMORY_SHARE
    design = together.design(experiments, room)
    assert len(experiments) == 64
    assert design.name == together.GROUPS
    assert design.memory_mib <= room
    assert len(design.references) == 1
    assert "64 engines in 3 groups" in design.words
    assert "1 of them in several" in design.words


@pytest.mark.parametrize(
    ("name", "groups", "references", "words"),
    [
        (together.ROUNDS, (("a", "b"),), (), "2 engines side by side in rounds, 1.5 GiB"),
        (together.ROUNDS, (("a",),), (), "1 engine side by side in rounds, 1.5 GiB"),
        (
            *(together.SITTINGS, (("a", "b"),), ()),
            "2 engines, one at a time in every round (sittings), 1.5 GiB",
        ),
        (
            *(together.GROUPS, (("a", "b", "c"), ("a", "d")), ("a",)),
            "4 engines in 2 groups of at most 3, 1 of them in several, 1.5 GiB",
        ),
        (
            *(together.GROUPS, (("a", "b"), ("c", "d")), ()),
            "4 engines in 2 groups of at most 2, 1.5 GiB",
        ),
    ],
)
def test_a_design_in_words(name, groups, references, words):
    assert together.Design(name, groups, frozenset(references), 1536).words == words
