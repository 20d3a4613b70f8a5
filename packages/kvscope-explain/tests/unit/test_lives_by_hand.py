"""The life of each request of a run of seven passes, written down by hand.

Blocks have 4 tokens, the cache has 4 blocks. Pass n begins at n seconds and takes 0.9 s. A is
served throughout. B pauses, is preempted so that A gets a block, and is computed again. D is
preempted and resumes in the same pass. C waits for room, and E until it gives up.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvscope.api.runs import replay
from kvscope.judge.records import Records
from kvscope.judge.twin.rules import Group
from kvscope_explain import causes as why
from kvscope_explain.explained import names, run_lines, sentence
from kvscope_explain.life import (
    COPIED,
    DECODED,
    LOADED,
    PAUSED,
    PREEMPTED,
    PREFILLED,
    QUEUED,
    RECOMPUTED,
    Lives,
)
from kvscope_explain.limits import Limits
from kvscope_explain.refusals import State, Waiting, refusal
from tests.run_records import facts_of

REQUESTS = [
    # arrives, prompt, first pass, finished, aborted
    ("A", 0.0, 6, 0.0, 4.9, False),
    ("B", 0.0, 4, 0.0, 6.9, False),
    ("D", 0.4, 1, 5.0, 6.9, False),
    ("C", 0.5, 8, 6.0, 6.9, False),
    ("E", 1.2, 5, None, 4.5, True),
]
USED = [3, 4, 4, 4, 4, 2, 4]  # blocks, by pass
PREFILL = [6, 0, 3, 0, 0, 7, 8]  # tokens of prompts and of recomputation
BATCH = [
    # pass, request, phase, scheduled, recomputed, context, sampled, hit
    (0, "A", "prefill", 2, 0, 4, 1, 4),
    (0, "B", "prefill", 4, 0, 0, 1, 0),
    (1, "A", "decode", 1, 0, 6, 1, 0),
    (1, "B", "decode", 1, 0, 4, 1, 0),
    (2, "A", "decode", 1, 0, 7, 1, 0),
    (3, "A", "decode", 1, 0, 8, 1, 0),
    (4, "A", "decode", 1, 0, 9, 1, 0),
    (5, "B", "prefill", 6, 5, 0, 1, 0),
    (5, "D", "prefill", 1, 0, 0, 1, 0),
    (6, "B", "decode", 1, 0, 6, 1, 0),
    (6, "C", "prefill", 8, 0, 0, 1, 0),
    (6, "D", "prefill", 2, 1, 0, 1, 0),
]
LOST = [
    # pass, request, event, time, blocks, tokens
    (3, "B", "preempt", 3.0, 2, 5),
    (5, "B", "resume", 5.0, 2, 5),
    (6, "D", "preempt", 5.95, 1, 1),
    (6, "D", "resume", 6.0, 1, 1),
]


COPY = [
    "request_id",
    "arrived_step",
    "step",
    "direction",
    "kind",
    "start_s",
    "end_s",
    "blocks",
    "bytes",
]


@pytest.fixture(scope="module")
def lives() -> Lives:
    return lives_with()


def lives_with(
    *loads: tuple[Any, ...],
    requests: Sequence[tuple[Any, ...]] = REQUESTS,
    rows: Sequence[tuple[Any, ...]] = BATCH,
    blocks: int = 4,
    **limits: int,
) -> Lives:
    """The run, with these copies to the device by vLLM's offloading, and limits of the engine."""
    columns = [
        "request_id",
        "arrival_s",
        "prompt_tokens",
        "first_scheduled_s",
        "finished_s",
        "aborted",
    ]
    came = pd.DataFrame(requests, columns=columns)
    columns = [
        "step",
        "request_id",
        "phase",
        "scheduled_tokens",
        "recomputed_tokens",
        "context_tokens",
    ]
    batch = pd.DataFrame(rows, columns=[*columns, "sampled_tokens", "hit_tokens"])
    in_pass = batch.groupby("step")
    steps = pd.DataFrame(
        {
            "step": range(7),
            "start_s": [float(n) for n in range(7)],
            "duration_s": 0.9,
            "requests": in_pass.size(),
            "prefill_tokens": PREFILL,
            "recomputed_tokens": in_pass["recomputed_tokens"].sum(),
            "scheduled_tokens": in_pass["scheduled_tokens"].sum(),
            "kv_blocks_used": USED,
            "kv_blocks_total": 4,
        }
    )
    columns = ["step", "request_id", "event", "time_s", "blocks", "tokens"]
    preemptions = pd.DataFrame(LOST, columns=columns)
    copies = pd.DataFrame(loads, columns=[*COPY, "job", "ordered_s"]).assign(repeat=0)
    run = Records(
        Path("by-hand"),
        facts=facts_of(engine={"block_size": 4, "kv_blocks_total": blocks}, evidence=["passes"]),
        settings={"engine": limits},
        requests=came.assign(repeat=0, preemptions=0, output_tokens=2),
        steps=steps.assign(repeat=0),
        batch=batch.assign(repeat=0, own_hit_tokens=0, loaded_tokens=0),
        preemptions=preemptions.assign(repeat=0, policy="recompute", refused=False),
        transfers=copies[copies["job"].isna()],
        jobs=copies[copies["job"].notna()],
    )
    return Lives(run.of_repeat(0), run.settings)


def passes(count: int, tokens: int, sampled: int, beside: int, **more: int) -> dict[str, int]:
    return {"passes": count, "tokens": tokens, "sampled": sampled, "beside": beside} | more


LOSS = {"action": "recompute", "refused": False, "victim": "last"}
Expected = tuple[str, float, float, tuple[int, int] | None, dict[str, float], dict[str, Any]]
EXPECTED: dict[str, list[Expected]] = {
    "A": [
        (PREFILLED, 0.0, 0.9, (0, 0), {why.PREFILL: 0.9}, passes(1, 2, 1, 1, hit=4)),
        (DECODED, 0.9, 4.9, (1, 4), {why.DECODE: 3.0, why.BESIDE: 1.0}, passes(4, 4, 4, 1)),
    ],
    "B": [
        (PREFILLED, 0.0, 0.9, (0, 0), {why.PREFILL: 0.9}, passes(1, 4, 1, 1)),
        (DECODED, 0.9, 1.9, (1, 1), {why.DECODE: 1.0}, passes(1, 1, 1, 1)),
        (PAUSED, 1.9, 3.0, (2, 2), {why.PAUSED: 1.1}, {"passes": 1, "prefill_tokens": 3}),
        (
            *(PREEMPTED, 3.0, 5.0, (3, 3), {why.NO_ROOM: 2.0}),
            LOSS | {"tokens": 5, "blocks": 2, "for_requests": ["A"]},
        ),
        (RECOMPUTED, 5.0, 5.75, (5, 5), {why.RECOMPUTE: 0.75}, passes(1, 5, 0, 1)),
        (DECODED, 5.75, 6.9, (5, 6), {why.DECODE: 0.0, why.BESIDE: 1.15}, passes(2, 2, 2, 2)),
    ],
    "C": [
        (
            *(QUEUED, 0.5, 6.0, None),
            {why.NEXT_PASS: 0.5, why.NO_ROOM: 4.0, why.PREEMPTING: 1.0},
            {"ahead": 1, "same_instant": 0},
        ),
        (PREFILLED, 6.0, 6.9, (6, 6), {why.PREFILL: 0.9}, passes(1, 8, 1, 2)),
    ],
    "D": [
        (
            *(QUEUED, 0.4, 5.0, None),
            {why.NEXT_PASS: 0.6, why.NO_ROOM: 3.0, why.PREEMPTING: 1.0},
            {"ahead": 0, "same_instant": 0},
        ),
        (PREFILLED, 5.0, 5.95, (5, 5), {why.PREFILL: 0.95}, passes(1, 1, 1, 1)),
        (
            *(PREEMPTED, 5.95, 6.0, (6, 6), {why.NO_ROOM: 0.05}),
            LOSS | {"tokens": 1, "blocks": 1, "for_requests": ["C"]},
        ),
        (RECOMPUTED, 6.0, 6.45, (6, 6), {why.RECOMPUTE: 0.45}, passes(1, 1, 0, 2)),
        (DECODED, 6.45, 6.9, (6, 6), {why.BESIDE: 0.45}, passes(1, 1, 1, 2)),
    ],
    "E": [
        (
            *(QUEUED, 1.2, 4.5, None),
            {why.NEXT_PASS: 0.8, why.NO_ROOM: 1.5, why.PREEMPTING: 1.0},
            {"ahead": 2, "same_instant": 0},
        ),
    ],
}


@pytest.mark.parametrize("request_id", EXPECTED)
def test_a_life_is_as_written_down(lives: Lives, request_id: str) -> None:
    result = lives.of(request_id)
    assert [stretch.kind for stretch in result] == [kind for kind, *_ in EXPECTED[request_id]]
    rows = zip(result, EXPECTED[request_id], strict=True)
    for one, (_, start_s, end_s, steps, causes, facts) in rows:
        assert (one.start_s, one.end_s) == pytest.approx((start_s, end_s))
        assert one.steps == steps
        assert one.causes == pytest.approx({name: s for name, s in causes.items() if s})
        for name, value in facts.items():
            expected = pytest.approx(value) if isinstance(value, float) else value
            assert one.facts[name] == expected, (one.kind, name)
        assert {"hit", "own_hit", "loaded"} & {*one.facts} == {"hit"} & {*facts}


def test_a_wait_ends_with_the_load_that_was_ordered_in_it() -> None:
    lives = lives_with(
        ("B", None, 4, "in", "kv", 4.3, 4.7, 1, 2048, 9, 4.2),
        ("C", None, 5, "in", "kv", 5.1, 5.3, 2, 4096, 12, 5.0),
        ("A", None, 5, "in", "kv", 9.1, 9.3, 2, 4096, 13, 9.0),  # of a request that has ended
    )
    waits = (PREEMPTED, QUEUED, LOADED)
    result = {
        name: [stretch for stretch in lives.of(name) if stretch.kind in waits] for name in "ABC"
    }
    assert [(stretch.kind, stretch.start_s, stretch.end_s) for stretch in result["B"]] == [
        *[(PREEMPTED, 3.0, 4.2), (LOADED, 4.2, 5.0)],
    ]
    assert [(stretch.kind, stretch.start_s, stretch.end_s) for stretch in result["C"]] == [
        *[(QUEUED, 0.5, 5.0), (LOADED, 5.0, 6.0)],
    ]
    assert not result["A"]
    load = result["B"][1]
    assert (load.facts["blocks"], load.facts["bytes"]) == (1, 2048)
    assert load.causes == pytest.approx(
        {why.LOAD_QUEUED: 0.1, why.LOAD_COPY: 0.4, why.LOAD_NOTICED: 0.3}
    )
    assert sentence(load) == (
        "waits for the load of 1 block (0.00205 MB) from the host: 100 ms until earlier copies "
        "had ended, 400 ms for the copy, 300 ms until the scheduler learned of its end"
    )


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"max_num_seqs": 2}, why.FULL_BATCH),
        ({"max_num_batched_tokens": 2}, why.FULL_PASS),
        ({"blocks": 6, "max_num_seqs": 99}, why.NOT_ADMITTED),
        ({"blocks": 6}, why.UNKNOWN),
    ],
)
def test_another_limit_is_another_cause(changed: dict[str, Any], cause: str) -> None:
    (wait, *_) = lives_with(**changed).of("D")
    assert wait.causes[cause] >= 1.0  # in the first pass after it came, at least
    assert wait.causes.get(why.NO_ROOM, 0.0) < 3.0


def test_as_many_free_blocks_as_are_needed_are_room() -> None:
    (wait, *_) = lives_with(blocks=5, max_num_seqs=99).of("D")  # A and B have four
    assert why.NO_ROOM not in wait.causes
    assert wait.causes[why.NOT_ADMITTED] >= 2.0


def test_a_request_that_comes_as_a_pass_begins_waits_for_none() -> None:
    (wait,) = lives_with(requests=[*REQUESTS, ("G", 2.0, 8, None, 4.5, True)]).of("G")
    assert why.NEXT_PASS not in wait.causes
    assert sum(wait.causes.values()) == pytest.approx(2.5)


def test_a_window_needs_the_blocks_of_its_last_pass_alone() -> None:
    rules = replay.Rules(16, 12, [Group("SlidingWindow", 16, 32)])
    limits, state = Limits(pass_tokens=64, requests=8), State(0, 0, 12, False)
    assert refusal(limits, rules, Waiting("1", 512), state).cause != why.NEVER
    whole = replay.Rules(16, 12, [Group("FullAttention", 16)])
    assert refusal(limits, whole, Waiting("1", 512), state).cause == why.NEVER


def test_two_loads_take_until_the_later_one_has_ended() -> None:
    loads = [("B", None, 4, "in", "kv", 4.3, 4.7, 1, 2048, 9, 4.2)]
    loads += [("B", None, 4, "in", "kv", 4.4, 4.9, 1, 2048, 10, 4.25)]
    (load,) = [one for one in lives_with(*loads).of("B") if one.kind == LOADED]
    assert load.causes[why.LOAD_COPY] == pytest.approx(0.6)


def test_blocks_that_are_freed_later_leave_no_room() -> None:
    longer = [*BATCH, (5, "A", "decode", 1, 0, 10, 1, 0)]  # one more pass of A, which has 3 blocks
    causes = {
        name: lives_with(rows=rows, blocks=7, max_num_seqs=99).of("C")[0].causes
        for name, rows in (("as it was", BATCH), ("later", longer))
    }
    assert causes["as it was"].get(why.NO_ROOM, 0.0) == pytest.approx(0.0)
    assert causes["later"][why.NO_ROOM] == pytest.approx(1.0)  # in pass 5, beside B and D


@pytest.mark.parametrize("copy_s", [0.2, 0.4, 5.0])
def test_a_longer_copy_takes_more_of_its_pass(copy_s: float) -> None:
    copy = ("B", None, 5, "in", "kv", 5.0, 5.0 + copy_s, 1, 2048, None, None)
    copied = [one for one in lives_with(copy).of("B") if one.kind == COPIED]
    assert copied[0].causes == pytest.approx({why.COPY: min(copy_s, 0.9)})


def test_a_request_that_the_cache_cannot_hold_is_named() -> None:
    lives = lives_with(requests=[*REQUESTS, ("F", 0.2, 20, None, 6.9, True)])
    (wait,) = lives.of("F")
    assert wait.causes == pytest.approx(
        {why.NEXT_PASS: 0.8, why.NEVER: 3.9, why.NO_ROOM: 1.0, why.PREEMPTING: 1.0}
    )
    assert "as it can never run: 5 blocks needed, more than the cache has" in sentence(wait)
    assert "behind request F, which can never run" in sentence(lives.of("E")[0])


def test_the_lines_of_a_run_have_all_its_time(lives: Lives) -> None:
    heading, *lines = run_lines(lives)
    assert heading == "5 requests took 28.000 s in all"
    shares = [float(line.split("%")[0]) for line in lines[: lines.index("")]]
    assert sum(shares) == pytest.approx(100, abs=0.3)
    assert shares == sorted(shares, reverse=True)
    losses = [line.split() for line in lines[lines.index("") :] if " request " in line]
    assert [words[3] for words in losses] == ["B:", "D:", "C:", "D:", "E:", "B:"]
    assert lines[-1] == "The slowest requests: B, D, C, A, E"


def test_only_the_first_of_many_requests_are_named() -> None:
    assert names(["1"]) == "request 1"
    assert names([*"1234"]) == "requests 1, 2, 3, 4"
    assert names([*"123456"]) == "requests 1, 2, 3, 4 and 2 more"
