"""Whom to preempt: every rule with every batching and action, and forged victims are noticed."""

import random
from itertools import product

import pandas as pd
import pytest

from kvscope.judge.records import Records, read_records
from kvscope.report.check_run import check_run
from kvscope.tables.verdict import HELD, VIOLATED
from tests.warm import Warm

from .cases import BATCHING
from .conftest import AMPLE, SCARCE, Runner, directory_of
from .forged_runs import found, noticed

pytestmark = pytest.mark.engine

VICTIMS = (
    *("last", "first", "longest", "shortest"),
    *("least_computed", "most_computed", "random"),
)
ACTIONS = {
    "recompute": ("overflow=recompute",),
    "swap": ("overflow=swap", "overflow.host_blocks=64"),
    "small-pool": ("overflow=swap", "overflow.host_blocks=4"),
}


def random_words(seed: int) -> list[str]:
    """A workload of which few requests have room at a time; some come later, some give up."""
    draw = random.Random(seed)
    words = [
        "workload=uniform",
        f"workload.num_requests={draw.randint(6, 20)}",
        f"workload.min_tokens={draw.randint(10, 90)}",
        f"workload.max_tokens={draw.randint(90, 190)}",
        f"workload.prompt_to_output_ratio={draw.choice([0.5, 1.0, 3.0])}",
        "engine.max_model_len=192",
        "engine.max_num_batched_tokens=256",
        f"engine.max_num_seqs={draw.randint(3, 9)}",
        f"cache.block_size={(size := draw.choice([4, 16]))}",
        f"cache.blocks={draw.randint(200, 480) // size}",
        f"cache.admission={draw.choice(['vllm', 'vllm-0.4.2'])}",
        f"seed={seed}",
        "tracing=none",
    ]
    if draw.random() < 0.4:
        words += ["workload.arrival=poisson", f"workload.rate_per_s={draw.choice([20, 80])}"]
    return words


SMALL = (
    *("device=dry", "engine.max_num_seqs=8", "workload=uniform", "engine.max_model_len=192"),
    *("cache.blocks=14", "cache.admission=vllm-0.4.2", "cache.watermark=0.01"),
)
CASES = [*product(VICTIMS, BATCHING, ACTIONS)]


def marks(victim: str, batching: str, action: str) -> list[pytest.MarkDecorator]:
    """An action for each victim and batching is not exhaustive."""
    places = VICTIMS.index(victim), [*BATCHING].index(batching), [*ACTIONS].index(action)
    return [pytest.mark.exhaustive] * bool(sum(places) % len(ACTIONS))


@pytest.mark.parametrize(
    ("victim", "batching", "action"), [pytest.param(*case, marks=marks(*case)) for case in CASES]
)
def test_runs_preempt_whom_the_rule_says(
    victim: str, batching: str, action: str, warm: Warm
) -> None:
    seed = CASES.index((victim, batching, action))
    words = ["device=dry", *random_words(seed), *BATCHING[batching], *ACTIONS[action]]
    preempts_whom_the_rule_says(words, victim, warm)


def preempts_whom_the_rule_says(words: list[str], victim: str, warm: Warm) -> None:
    directory = directory_of(warm, [*words, f"overflow.victim={victim}"], "victims")
    assert check_run(directory, quick=True) == []
    run = read_records(directory)
    if len(run.preemptions):
        assert "victim_wrong" in found(run, HELD)


@pytest.fixture(scope="module")
def ranked(warm: Warm) -> dict[str, Records]:
    """A workload with many preemptions, by every rule; some rules take victims out of their
    pass."""
    words = (*SMALL, "workload.max_tokens=192", "workload.num_requests=16", *BATCHING["mixed"])
    directories = {
        victim: directory_of(warm, [*words, f"overflow.victim={victim}"], "ranked")
        for victim in VICTIMS
    }
    return {victim: read_records(directory) for victim, directory in directories.items()}


@pytest.mark.parametrize("other", VICTIMS)
def test_victims_are_not_those_of_another_rule(other: str, ranked: dict[str, Records]) -> None:
    run = ranked["random"]
    settings = run.settings | {"overflow": run.settings["overflow"] | {"victim": other}}
    judged = "victim_wrong" in found(run.variant(settings=settings), VIOLATED)
    assert judged == (other != "random")


@pytest.mark.parametrize(
    ("column", "by"), [("scheduled_tokens", 2), ("blocks", 1), ("blocks", -1), ("tokens", -1)]
)
def test_tokens_that_a_victim_gave_back_follow_from_its_passes(
    ranked: dict[str, Records], column: str, by: int
) -> None:
    run = ranked["first"]
    rows = run.preemptions
    given = rows["scheduled_tokens"].fillna(0) > 0
    assert given.any()
    for place in (rows.index[given][0], rows.index[(rows["event"] == "preempt") & ~given][0]):
        forged = rows.copy()
        forged.loc[place, column] += by
        differs = noticed(run.variant(preemptions=forged))
        assert {"decisions", "preemptions.blocks", "preemptions.tokens"} & differs


def test_a_victim_gives_nothing_back_where_vllm_preempts_the_last(
    ranked: dict[str, Records],
) -> None:
    run = ranked["last"]
    rows = run.preemptions
    lost = rows["event"] == "preempt"
    assert not rows["scheduled_tokens"][lost].any()
    given = rows["scheduled_tokens"].where(~lost, 1)
    forged = run.variant(preemptions=rows.assign(scheduled_tokens=given))
    assert "decisions" in noticed(forged)


ON_CPU = {
    "least_computed-chunked": (*BATCHING["chunked"], "overflow=recompute"),
    "first-mixed": ("overflow=swap", "overflow.host_blocks=64"),
    "longest-cached": ("overflow=swap", "overflow.host_blocks=64", "cache.prefix_caching=true"),
    "first-cached": ("overflow=recompute", "cache.prefix_caching=true"),
}


SCHEDULED = {
    "steps": ["step", "scheduled_tokens", "preempted_requests", "kv_blocks_used"],
    "preemptions": ["step", "request_id", "event", "tokens", "blocks", "scheduled_tokens"],
}


@pytest.mark.parametrize("case", ON_CPU)
def test_tokens_and_passes_are_those_of_an_ample_and_of_a_dry_run(case: str, run: Runner) -> None:
    words = (*ON_CPU[case], f"overflow.victim={case.partition('-')[0]}", "repeats=1")
    computed_as_ample_and_scheduled_as(run, words, "cached" not in case)


def computed_as_ample_and_scheduled_as(run: Runner, words: tuple[str, ...], on_dry: bool) -> None:
    computed = run(SCARCE, *words).records
    assert computed.requests["preemptions"].sum() > 0
    ample = run(AMPLE).records.requests.query("repeat == 0").set_index("request_id")
    given = computed.requests.set_index("request_id")["output_sha256"]
    assert given.equals(ample["output_sha256"])
    if not on_dry:
        return  # the tokens of a dry run are others, and so may be its hits
    today = ("device=dry",)
    dry = run(SCARCE, *words, *today).records
    for name, columns in SCHEDULED.items():
        one, other = (getattr(records, name)[columns] for records in (computed, dry))
        pd.testing.assert_frame_equal(one, other)
