"""Replay of vLLM's offloading: the pass that waits for a store, and the blocks that a load may
take."""

from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from kvscope.judge.twin.jobs import Offloading
from kvscope.judge.twin.memory import Blocks
from kvscope.judge.twin.pool import Block
from kvscope.judge.twin.requests import Request
from kvscope.judge.twin.rules import Group, Rules
from kvscope.judge.twin.told import Job, Prompts
from kvscope.tables import kv_kinds
from kvscope.tables.copies import IN, OUT

SIZE, STORED = 4, 2  # tokens of a block, blocks of the store
STARTS_S = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
STORE = 7


def of_request(
    stores: dict[int, list[Job]], host_blocks: int, prompt: int = 3, stores_outputs: bool = True
) -> tuple[Request, Offloading]:
    """A request with three blocks, and a replay of these stores, by pass."""
    groups = [Group(kv_kinds.FULL.vllm_name, SIZE)]
    rules = Rules(SIZE, 20, groups, host_blocks_total=host_blocks, stores_outputs=stores_outputs)
    blocks = Blocks(rules, Prompts(pd.DataFrame({"request_id": ["a"]}), SIZE))
    request = Request("a", prompt=prompt * SIZE, due=1, arrival_s=0.0, order=0)
    blocks.grow(request, 3 * SIZE, 0)
    told: Any = SimpleNamespace(starts_s=STARTS_S, stores=stores)
    return request, Offloading(rules, told, blocks)


class Played:
    """A request, whose first two blocks are stored in pass 0, in six passes of a second each.

    It ends with a pass, or a pass preempts it, or one gives a block of it or of nobody to another.
    """

    def __init__(
        self,
        end_s: float = 0.5,
        ends: int | None = None,
        preempts: int | None = None,
        gives: int | None = None,
        gives_free: int | None = None,
        host_blocks: int = 100,
    ) -> None:
        stores = {0: [job(OUT, STORED, 0, end_s)]}
        self.request, self.jobs = of_request(stores, host_blocks)
        self.jobs.give(self.request.blocks)
        self.jobs.offer(self.request, STORED * SIZE)
        for step in range(len(STARTS_S)):
            if step == preempts:
                self.jobs.preempt(self.request, step)
            if step == gives:
                self.jobs.give(self.request.blocks[:1])
            if step == gives_free:
                self.jobs.give([Block(19)])
            assert [*self.jobs.store(step)] == []
            self.jobs.end_pass(step)
            if step == ends:
                self.request.tokens = STORED * SIZE
                self.jobs.end(self.request, aborted=True)


def job(direction: str, blocks: int, first: int, end_s: float = 0.0, number: int = STORE) -> Job:
    return Job(number, "a", direction, blocks, first, 0.0, end_s, 0.0, None, None)


@pytest.mark.parametrize("end_s", [at + 0.5 for at in range(6)])
@pytest.mark.parametrize("step", [2, 3, 4])
@pytest.mark.parametrize("how", ["preempted", "ended"])
def test_a_pass_waits_for_a_store_whose_blocks_it_gives_away(
    how: str, step: int, end_s: float
) -> None:
    """It must if the store goes on, and may if it has ended since the pass before."""
    of_how = {"preempted": {"preempts": step}, "ended": {"ends": 1, "gives": step}}
    jobs = Played(end_s, **of_how[how]).jobs
    must, may = end_s > STARTS_S[step], end_s > STARTS_S[step - 1]
    for stated in (None, step - 1, step, step + 1):
        assert jobs.awaited(STORE, stated) == (step if must or (may and stated == step) else None)


def test_the_first_of_such_passes_waits() -> None:
    jobs = Played(end_s=9.0, ends=1, gives=3, preempts=4).jobs
    assert [jobs.awaited(STORE, stated) for stated in (None, 3, 4)] == [3, 3, 3]


def test_nothing_must_wait_for_a_store_of_unknown_blocks() -> None:
    jobs = Played(end_s=9.0, preempts=3).jobs
    jobs.stores[STORE].sure = False
    assert [jobs.awaited(STORE, stated) for stated in (None, 3, 4)] == [None, 3, None]


@pytest.mark.parametrize(
    "how", [{}, {"ends": 1}, {"gives": 2}, {"ends": 3, "gives": 2}, {"ends": 1, "gives_free": 2}]
)
def test_no_pass_waits_for_a_store_of_blocks_that_nobody_else_gets(how: dict[str, int]) -> None:
    """A request that goes on may find its own blocks; others may get blocks that are free."""
    jobs = Played(end_s=9.0, **how).jobs  # type: ignore[arg-type]
    assert {jobs.awaited(STORE, stated) for stated in (None, *range(6))} == {None}


@pytest.mark.parametrize("host_blocks", [1, STORED, 100])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("found", [0, 1])
@pytest.mark.parametrize("blocks", [0, 1, 2, 3])
def test_a_load_takes_the_following_blocks_of_the_host(
    blocks: int, found: int, first: int, host_blocks: int
) -> None:
    """It takes all; of a host that is full it may take less, never more."""
    played = Played(host_blocks=host_blocks)
    played.request.hit = found * SIZE
    words = [*played.jobs.load(played.request, job(IN, blocks, first))]
    there, full = STORED - found, host_blocks < STORED
    wrong_size = blocks > there or (blocks < there and not full)
    assert [word.split()[1] for word in words] == ["from"] * (first != found) + [
        str(blocks)
    ] * wrong_size


@pytest.mark.parametrize("blocks", [0, 1, 2, 3])
def test_blocks_of_a_store_that_a_load_takes_are_counted(blocks: int) -> None:
    played = Played()
    for _ in range(2):  # a block counts once
        [*played.jobs.load(played.request, job(IN, blocks, 0))]
        loaded = min(blocks, STORED)
        assert played.jobs.stores[STORE].loaded_blocks == (loaded, loaded)


# ------------------------------------------------------------------------ which stores are due


@pytest.mark.parametrize("host_blocks", [1, 2, 3])
@pytest.mark.parametrize("filled", [0, 1, 2, 3])
@pytest.mark.parametrize("store", [None, (0, 1), (0, 2), (0, 3), (1, 1), (1, 2)])
def test_blocks_that_a_pass_fills_are_stored(
    store: tuple[int, int] | None, filled: int, host_blocks: int
) -> None:
    """All of it; where the host lacks room, none of it is no fault."""
    stores = [job(OUT, store[1], store[0])] if store else []
    request, jobs = of_request({1: stores}, host_blocks)
    jobs.offer(request, filled * SIZE + SIZE - 1)
    all_of_it = (0, filled) if filled else None
    assert bool([*jobs.store(1)]) == (
        store != all_of_it and not (store is None and filled > host_blocks)
    )


@pytest.mark.parametrize("stores_outputs", [False, True])
@pytest.mark.parametrize("blocks", [0, 1, 2, 3])
def test_outputs_are_stored_where_the_policy_does_so(blocks: int, stores_outputs: bool) -> None:
    stores = [job(OUT, blocks, 0)] if blocks else []
    request, jobs = of_request({1: stores}, 100, prompt=2, stores_outputs=stores_outputs)
    request.given = SIZE
    jobs.offer(request, 3 * SIZE)
    assert bool([*jobs.store(1)]) == (blocks != (3 if stores_outputs else 2))


FULL = 2  # blocks of a host that has two of three blocks and more


def resumed(first: int, stores: dict[int, list[Job]]) -> tuple[Request, Offloading]:
    """A request that stored two blocks, in a full host, and resumes with a load of so many."""
    request, jobs = of_request({0: [job(OUT, 2, 0)], **stores}, host_blocks=FULL)
    jobs.offer(request, 2 * SIZE)
    assert [*jobs.store(0)] == []
    jobs.stored_blocks = FULL + 1  # others' blocks: some have left
    assert [*jobs.load(request, job(IN, first, 0))] == []
    return request, jobs


@pytest.mark.parametrize("loaded", [0, 1, 2])
@pytest.mark.parametrize("first", [0, 1, 2, 3])
@pytest.mark.parametrize("blocks", [0, 1, 2, 3])
def test_a_store_into_a_full_host_has_all_due_blocks(first: int, blocks: int, loaded: int) -> None:
    """The third block, and of those before it that were not loaded any that have left the host.

    A plain reference: the sets of blocks that vLLM may find missing, and what they look like.
    """
    request, jobs = resumed(loaded, {1: [job(OUT, blocks, first, number=8)]})
    jobs.offer(request, 3 * SIZE)
    perhaps = range(loaded, 2)
    missing = [{2, *gone} for count in range(3) for gone in combinations(perhaps, count)]
    possible = {(min(one), len(one)): one for one in missing}
    assert bool([*jobs.store(1)]) == ((first, blocks) not in possible)
    if (first, blocks) in possible:
        alike = [one for one in missing if (min(one), len(one)) == (first, blocks)]
        assert jobs.stores[8].sure == (len(alike) == 1)


def test_blocks_stored_into_a_full_host_are_not_due_again() -> None:
    again = {1: [job(OUT, 1, 2)], 2: [job(OUT, 1, 2)]}
    request, jobs = resumed(2, again)
    words = []
    for step in (1, 2):
        jobs.offer(request, 3 * SIZE)
        words.append([*jobs.store(step)])
    assert [len(each) for each in words] == [0, 1]


def test_a_store_after_the_last_pass_must_be_due() -> None:
    last = len(STARTS_S) - 1
    _, jobs = of_request({last: [job(OUT, 1, 0)]}, host_blocks=100)
    assert [*jobs.store(last)] == []  # of a request that ended with it, perhaps
    assert [word.split()[-4:] for word in jobs.store_rest()] == [["that", "are", "not", "due"]]


def test_stores_that_are_not_due_take_room() -> None:
    """A single complaint is enough: the host may lack room for due stores."""
    request, jobs = of_request({0: [job(OUT, 3, 0)]}, host_blocks=3)
    assert len([*jobs.store(0)]) == 1
    jobs.offer(request, SIZE)
    assert [*jobs.store(1)] == []


@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize("store", [None, (0, 1), (2, 1), (1, 2)])
def test_stored_blocks_are_not_due_again(step: int, store: tuple[int, int] | None) -> None:
    stores = {0: [job(OUT, 2, 0)], step: [job(OUT, store[1], store[0])] if store else []}
    request, jobs = of_request(stores, host_blocks=100)
    for at in range(step + 1):
        jobs.offer(request, (3 if at == step else 2) * SIZE)
        assert bool([*jobs.store(at)]) == (at == step and store != (2, 1))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("aborted", [False, True])
@pytest.mark.parametrize("blocks", [0, 1, 2, 3])
def test_blocks_filled_by_the_end_of_a_request_are_stored_with_the_next_pass(
    blocks: int, aborted: bool, last: bool
) -> None:
    """After the last pass, with that pass. An aborted request has filled its computed blocks."""
    ends = len(STARTS_S) - 1 if last else 2
    stores = {ends if last else ends + 1: [job(OUT, blocks, 0)] if blocks else []}
    request, jobs = of_request(stores, host_blocks=100)
    request.tokens = 2 * SIZE
    words: list[str] = []
    for step in range(len(STARTS_S)):
        words += jobs.store(step)
        if step == ends:
            jobs.end(request, aborted)
    words += jobs.store_rest()
    assert bool(words) == (blocks != (2 if aborted else 3))
