"""Conversations in a closed loop: turns follow one another, and are given the workload's tokens."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvscope.judge.outputs import output_hashes
from kvscope.judge.planned import experiment_of
from kvscope.judge.records import Records, read_records
from kvscope.plan.grid import expand
from kvscope.report.check_run import check_run
from kvscope.tables.verdict import HELD, VIOLATED
from kvscope.workload.requests import build, sha256_of_tokens
from tests.warm import Warm

from .conftest import ROOT, Run, Runner, last_of_each_key
from .forged_runs import Forgery, found

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CONVERSATIONS = (
    *("workload=conversation", "workload.num_conversations=6", "workload.turns=3"),
    *("workload.system_tokens=40", "workload.first_tokens=20", "workload.growth_tokens=12"),
    *("workload.output_tokens=14", "workload.think_s=0.03", "workload.max_tokens=192"),
)
AGENTS = (
    *("workload=agents", "workload.block_tokens=1", "workload.max_tokens=512"),
    *("workload.time_scale=0.001", "engine.max_model_len=512", "engine.max_num_batched_tokens=512"),
)
MOONCAKE = (
    *("workload=mooncake", "workload.block_tokens=16", "workload.max_tokens=256"),
    *("workload.time_scale=0.01", "engine.max_model_len=256", "workload.num_requests=12"),
)
DEVICES = {"dry": ("device=dry",), "cpu": ()}
SMALL = (
    *("engine.max_model_len=192", "engine.max_num_batched_tokens=512", "engine.max_num_seqs=8"),
    *("cache.block_size=32", "repeats=2", "warmup=1", "seed=5", "profiler=none"),
)


@pytest.fixture(scope="module")
def run(warm: Warm) -> Runner:
    """`run(*overrides)`: the run of SMALL with these settings, held against itself."""
    made: dict[tuple[str, ...], Run] = {}

    def run(*overrides: str) -> Run:
        if overrides not in made:
            words = last_of_each_key([*SMALL, *overrides])
            (planned,) = expand(None, words, ROOT / "config").experiments
            directory = warm.directory / "conversations" / planned.experiment.id
            facts = warm.run(planned.experiment, directory)
            assert facts["status"] == "complete", (directory / "log.txt").read_text()[-3000:]
            assert check_run(directory, quick=True) == []
            made[overrides] = Run(directory, facts, read_records(directory))
        return made[overrides]

    return run


@pytest.fixture(scope="module")
def closed(run: Runner) -> Runner:
    """`closed(device, *overrides)`: a run of conversations in a scarce cache."""

    def closed(device: str, *overrides: str) -> Run:
        return run(*CONVERSATIONS, "cache.blocks=9", *DEVICES[device], *overrides)

    return closed


@pytest.mark.parametrize(
    ("device", "overflow"),
    [
        ("dry", "recompute"),
        ("dry", "swap"),
        ("cpu", "recompute"),
        ("cpu", "swap"),
    ],
)
def test_a_turn_comes_when_the_one_before_has_finished_and_is_given_its_tokens(
    closed, device: str, overflow: str
) -> None:
    made = closed(device, f"overflow={overflow}")
    rows = made.table("requests")
    assert rows["preemptions"].sum()
    expected = {request.request_id: request for request in build(experiment_of(made.records))}
    for _, repeat in rows.groupby("repeat"):
        ends = repeat.set_index("request_id")["finished_s"]
        for row in repeat.itertuples():
            one = expected[row.request_id]
            assert one.output_token_ids is not None
            assert row.output_sha256 == sha256_of_tokens(one.output_token_ids)
            assert (row.conversation, row.turn) == (one.conversation, one.turn)
            for name in one.after:
                assert row.arrival_s == pytest.approx(ends[name] + one.think_s, abs=1e-9)
                assert row.first_scheduled_s >= ends[name] + one.think_s


def test_the_virtual_clock_jumps_to_the_next_turn(closed) -> None:
    made = closed("dry", "workload.think_s=5000")
    steps = made.table("steps")
    assert steps["start_s"].diff().max() > 1000
    assert len(steps) < 500


@pytest.mark.parametrize(
    "words",
    [
        ("overflow=recompute",),
        ("overflow=swap", "batching=prefill_first"),
        ("overflow=recompute", "cache.prefix_caching=true"),
        (
            "overflow=swap",
            "cache.prefix_caching=true",
            "batching=chunked",
            "batching.chunk_tokens=48",
        ),
    ],
    ids=" ".join,
)
def test_without_time_to_think_dry_passes_are_those_of_the_model_computed(
    closed: Runner, words: tuple[str, ...]
) -> None:
    """The pass with which a turn arrives then depends on passes, not on their durations."""
    shared = (
        "workload.think_s=0",
        "cache.admission=vllm",
        "cache.watermark=0",
        "repeats=1",
        *words,
    )
    columns = ["step", "request_id", "phase", "scheduled_tokens", "context_tokens", "hit_tokens"]
    dry, computed = (
        closed(device, *shared).table("batch").query("repeat == 0")[columns] for device in DEVICES
    )
    pd.testing.assert_frame_equal(
        dry.reset_index(drop=True), computed.reset_index(drop=True), check_dtype=False
    )


@pytest.mark.parametrize("words", [AGENTS, MOONCAKE], ids=["agents", "mooncake"])
@pytest.mark.parametrize("device", DEVICES)
def test_published_traces_are_served(run: Runner, device: str, words: tuple[str, ...]) -> None:
    made = run(*words, "cache.blocks=24", "overflow=swap", *DEVICES[device], "repeats=1")
    assert len(made.table("requests")) == len(build(experiment_of(made.records)))


def test_forced_tokens_hide_no_fault_of_the_cache(closed: Runner) -> None:
    """The tokens that the model would have chosen are the same in a scarce cache as in an ample
    one."""
    scarce, ample = closed("cpu", "overflow=swap"), closed("cpu", "cache.blocks=64")
    chosen = [output_hashes(made.table("requests")) for made in (scarce, ample)]
    assert chosen[0].equals(chosen[1])
    assert not (chosen[0] == scarce.table("requests")["output_sha256"].iloc[0]).any()
    assert chosen[0].nunique() > 1


@pytest.mark.parametrize("device", DEVICES)
def test_a_turn_finds_the_tokens_that_earlier_turns_generated(closed: Runner, device: str) -> None:
    words = ("cache.block_size=32", "workload.output_tokens=60", "workload.growth_tokens=4")
    made = closed(device, *words, "cache.blocks=30", "cache.prefix_caching=true")
    requests = {request.request_id: request for request in build(experiment_of(made.records))}
    hits = made.table("batch").groupby("request_id")["hit_tokens"].max()
    assert any(
        hits[request.request_id] > len(requests[request.after[0]].prompt_token_ids) + 32
        for request in requests.values()
        if request.after
    )


# --- forged rows


def of_follower(column: str, change: Any) -> Forgery:
    """A column of the last request that follows another."""

    def forge(run: Records) -> Records:
        rows = run.requests.copy()
        at = rows.index[rows["turn"] > 0][-1]
        rows.loc[at, column] = change(rows.loc[at, column])
        return run.variant(requests=rows)

    return forge


def of_workload(column: str, change: Any) -> Forgery:
    def forge(run: Records) -> Records:
        rows = run.workload.copy()
        at = rows.index[rows["turn"] > 0][-1]
        rows.at[at, column] = change(rows.at[at, column])
        return run.variant(workload=rows)

    return forge


FORGED = {
    "a turn comes early": (of_follower("arrival_s", lambda s: s - 0.001), "turn_misplaced"),
    "a turn comes late": (of_follower("arrival_s", lambda s: s + 0.001), "turn_misplaced"),
    "a turn of nothing": (of_follower("conversation", lambda _: None), "differs_from_replay"),
    "another turn": (of_follower("turn", lambda n: n + 1), "differs_from_replay"),
    "other tokens": (
        of_follower("output_sha256", lambda _: sha256_of_tokens([7])),
        "known_output_differs",
    ),
    "the model's own tokens differ": (
        of_follower("chosen_sha256", lambda _: sha256_of_tokens([7])),
        "outputs_differ",
    ),
    "no think time": (of_workload("think_s", lambda _: 0.0), "workload_differs"),
    "follows nothing": (of_workload("after", lambda _: None), "rows_wrong"),
    "follows another": (of_workload("after", lambda _: ["0"]), "workload_differs"),
    "another prompt": (of_workload("prompt_token_ids", lambda ids: ids + 1), "workload_differs"),
    "others are due": (of_workload("output_token_ids", lambda ids: ids + 1), "workload_differs"),
}


def test_a_forged_conversation_is_noticed(closed) -> None:
    whole = closed("dry", "overflow=swap").records
    assert not found(whole, VIOLATED)
    assert {"turn_misplaced", "known_output_differs"} <= found(whole, HELD)
    missed = {n: w for n, (forge, w) in FORGED.items() if w not in found(forge(whole), VIOLATED)}
    assert missed == {}


# --- hits of the prefix cache, by the published ids alone


def published(path: Path) -> Iterator[tuple[list[int], int, int, list[int]]]:
    """For each request of a trace: ids of its blocks, `in`, `out`, and the ids of the next
    request."""
    for number, line in enumerate(path.read_text().splitlines()):
        row = json.loads(line)
        if "requests" not in row:
            yield row["hash_ids"], row["input_length"], row["output_length"], []
            continue
        yield from agent(row["requests"], number * 10**9)


def agent(rows: list[Any], first: int) -> Iterator[tuple[list[int], int, int, list[int]]]:
    own = [row for row in rows if "in" in row]
    following = dict(zip(map(id, own), own[1:], strict=False))
    for request in rows:
        if "in" not in request:
            yield from agent(request["requests"], first)
            continue
        ids = [first + i for i in request["hash_ids"]]
        after = [first + i for i in following.get(id(request), {"hash_ids": []})["hash_ids"]]
        yield ids, request["in"], request["out"], after if after[: len(ids)] == ids else []


def expected_hits(trace: list[Any], admitted: list[int], block: int) -> list[int]:
    """Tokens that each request finds in an unlimited cache, in the order of admission.

    A block is there if a prompt had it, or an output that the next prompt has.
    """
    there: set[tuple[int, ...]] = set()
    found = [0] * len(trace)
    for number in admitted:
        ids, prompt, output, after = trace[number]
        most = (prompt - 1) // block  # a hit never covers the last token
        hit = 0
        while hit < min(most, len(ids)) and tuple(ids[: hit + 1]) in there:
            hit += 1
        found[number] = hit * block
        known = after[: (prompt + output - 1) // block] if after else ids[: prompt // block]
        there |= {tuple(known[: n + 1]) for n in range(len(known))}
    return found


@pytest.mark.parametrize(
    ("workload", "trace", "block"),
    [
        ("agents", "agents_6", 64),
        ("mooncake", "mooncake_conversation_40", 512),
    ],
)
def test_hits_of_an_ample_cache_follow_the_published_ids(run, workload, trace, block) -> None:
    most = ("engine.max_model_len=32768", "engine.max_num_batched_tokens=32768")
    ample = (f"cache.block_size={block}", f"cache.blocks={400_000 // block}")
    device = ("device=dry", "model=llama-3.1-8b")
    made = run(f"workload={workload}", *device, *most, *ample, "cache.prefix_caching=true")
    batch = made.table("batch")
    rows = list(published(ROOT / "config" / "traces" / f"{trace}.jsonl"))
    for _, repeat in batch.groupby("repeat"):
        first = repeat.drop_duplicates("request_id").set_index("request_id")["hit_tokens"]
        expected = expected_hits(rows, [int(name) for name in first.index], block)
        assert [int(first[str(n)]) for n in range(len(rows))] == expected
    assert sum(expected) > 0.4 * sum(prompt for _, prompt, _, _ in rows)
