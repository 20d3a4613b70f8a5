"""Whom to preempt: the cheapest, and every rule with the policies of packages."""

from itertools import product

import pytest

from kvscope.judge.records import Records, read_records
from kvscope.tables.verdict import VIOLATED
from tests.engine import test_victims as core
from tests.engine.cases import BATCHING
from tests.engine.conftest import Runner, directory_of
from tests.engine.forged_runs import found
from tests.warm import Warm

pytestmark = pytest.mark.engine

VICTIMS = (*core.VICTIMS, "cheapest")
ACTIONS = core.ACTIONS | {
    "activation": ("overflow=activation", "overflow.host_blocks=64"),
    "adaptive": ("overflow=adaptive", "overflow.host_blocks=6"),
    "native": ("overflow=native_full", "overflow.host_blocks=64", "cache.prefix_caching=true"),
}
CASES = [*product(VICTIMS, BATCHING, ACTIONS)]
WAITED = "first", "chunked", "native"
"""Settings with which a schedule without tokens preempts the only running request, and loads
another.
"""


def marks(victim: str, batching: str, action: str) -> list[pytest.MarkDecorator]:
    """An action for each victim and batching is not exhaustive, and WAITED."""
    if (victim, batching, action) == WAITED:
        return []
    places = VICTIMS.index(victim), [*BATCHING].index(batching), [*ACTIONS].index(action)
    return [pytest.mark.exhaustive] * bool(sum(places) % len(ACTIONS))


@pytest.mark.parametrize(
    ("victim", "batching", "action"), [pytest.param(*case, marks=marks(*case)) for case in CASES]
)
def test_modeled_runs_preempt_whom_the_rule_says(
    victim: str, batching: str, action: str, warm: Warm
) -> None:
    seed = CASES.index((victim, batching, action))
    words = ["device=modeled", *core.random_words(seed), *BATCHING[batching], *ACTIONS[action]]
    core.preempts_whom_the_rule_says(words, victim, warm)


def ranked(warm: Warm, victim: str) -> Records:
    words = [*core.SMALL, "workload.max_tokens=192", "workload.num_requests=16"]
    words = ["device=modeled", *words[1:], *BATCHING["mixed"], f"overflow.victim={victim}"]
    return read_records(directory_of(warm, words, "ranked"))


@pytest.mark.parametrize(("of", "other"), [("random", "cheapest"), ("cheapest", "random")])
def test_victims_are_not_those_of_another_rule(of: str, other: str, warm: Warm) -> None:
    run = ranked(warm, of)
    settings = run.settings | {"overflow": run.settings["overflow"] | {"victim": other}}
    assert "victim_wrong" not in found(run, VIOLATED)
    assert "victim_wrong" in found(run.variant(settings=settings), VIOLATED)


def test_tokens_and_passes_are_those_of_an_ample_and_of_a_dry_run(run: Runner) -> None:
    words = (*BATCHING["prefill_first"], *ACTIONS["activation"], "overflow.victim=random")
    core.computed_as_ample_and_scheduled_as(run, (*words, "repeats=1"), on_dry=True)
