"""What a replay holds of vLLM's offloading: which pass waits for a store, what a load may take."""

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from kvscope.copies import IN, OUT
from kvscope.judge.jobs import Offloading
from kvscope.judge.memory import Blocks
from kvscope.judge.requests import Request
from kvscope.judge.rules import Group, Rules
from kvscope.judge.told import Job, Prompts
from kvscope.kv_plan import OF_ALL_TOKENS

SIZE, STORED = 4, 2  # tokens of a block, blocks of the store
STARTS_S = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
STORE = 7


class Played:
    """A request, whose two blocks are stored in pass 0, in six passes of a second each.

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
        (kind, *_) = OF_ALL_TOKENS
        rules = Rules(SIZE, 20, [Group(kind, SIZE)], host_blocks_total=host_blocks)
        told: Any = SimpleNamespace(starts_s=STARTS_S, stores={0: [job(OUT, STORED, 0, end_s)]})
        blocks = Blocks(rules, Prompts(pd.DataFrame({"request_id": ["a"]}), SIZE))
        self.request = Request("a", prompt=STORED * SIZE, due=1, arrival_s=0.0, order=0)
        other = Request("b", prompt=SIZE, due=1, arrival_s=0.0, order=1)
        blocks.grow(self.request, STORED * SIZE, 0)
        blocks.grow(other, SIZE, 0)
        self.jobs = Offloading(rules, told, blocks)
        self.jobs.give(self.request.blocks)
        self.jobs.offer(self.request, STORED * SIZE)
        for step in range(len(STARTS_S)):
            if step == preempts:
                self.jobs.preempt(self.request, step)
            if step == gives:
                self.jobs.give(self.request.blocks[:1])
            if step == gives_free:
                self.jobs.give(other.blocks)
            assert [*self.jobs.store(step)] == []
            self.jobs.end_pass(step)
            if step == ends:
                self.jobs.end(self.request, aborted=False)


def job(direction: str, blocks: int, first: int, end_s: float = 0.0) -> Job:
    return Job(STORE, "a", direction, blocks, first, 0.0, end_s, 0.0, None, None)


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
def test_a_load_takes_what_follows_in_the_host(
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
