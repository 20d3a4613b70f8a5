"""Workloads whose prompts share texts: conversations, and traces of blocks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.base.errors import BadInput
from kvscope.workload.requests import Request, build
from kvscope.workload.script import Text, cut

from .test_workload_requests import experiment

DRY = (
    "device=dry",
    "model=llama-3.1-8b",
    "engine.max_model_len=65536",
    "engine.max_num_batched_tokens=65536",
    "cache.blocks=9999",
)


def by_id(found: list[Request]) -> dict[str, Request]:
    return {request.request_id: request for request in found}


def outputs(one: Request) -> np.ndarray:
    assert one.output_token_ids is not None
    return one.output_token_ids


def prefix(one: np.ndarray, other: np.ndarray) -> int:
    """Tokens that two prompts have in common from their starts."""
    shorter = min(len(one), len(other))
    differ = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differ[0]) if len(differ) else shorter


# --- texts


@given(
    sizes=st.lists(st.integers(1, 9), max_size=6), start=st.integers(0, 60), n=st.integers(0, 60)
)
def test_a_cut_has_the_tokens_that_are_there(sizes: list[int], start: int, n: int) -> None:
    texts = tuple(Text((number,), size, start=number) for number, size in enumerate(sizes))

    def spelt(some: tuple[Text, ...]) -> list[tuple[int, int]]:
        return [(text.key[0], at) for text in some for at in range(text.start, text.end)]

    assert spelt(cut(texts, start, n)) == spelt(texts)[start : start + n]


# --- synthetic conversations


SYNTHETIC = ("workload=conversation", "workload.system_prompts=2")


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), turns=st.integers(1, 9), sigma=st.sampled_from([0.0, 0.7]))
def test_a_prompt_begins_with_all_that_was_said_before(seed: int, turns: int, sigma: float) -> None:
    words = (f"seed={seed}", f"workload.turns={turns}", f"workload.turns_sigma={sigma}")
    result = build(experiment(*SYNTHETIC, *words, *DRY))
    known = by_id(result)
    for request in result:
        assert len(outputs(request)) == request.output_tokens
        assert bool(request.turn) == bool(request.after) == (request.arrival_s is None)
        for name in request.after:
            before = known[name]
            assert (before.conversation, before.turn) == (
                request.conversation,
                (request.turn or 0) - 1,
            )
            said = np.concatenate([before.prompt_token_ids, outputs(before)])
            assert (
                prefix(said, request.prompt_token_ids) == len(said) < len(request.prompt_token_ids)
            )


def test_conversations_share_their_system_prompt_and_nothing_else() -> None:
    result = build(experiment(*SYNTHETIC, "workload.system_tokens=50", *DRY))
    first = [request for request in result if request.turn == 0]
    for one in first:
        for other in first:
            if other is one:
                continue
            same = int(one.conversation or 0) % 2 == int(other.conversation or 0) % 2
            assert prefix(one.prompt_token_ids, other.prompt_token_ids) == (50 if same else 0)


def test_fewer_conversations_are_the_first_of_more() -> None:
    few, many = (
        build(experiment(*SYNTHETIC, f"workload.num_conversations={n}", *DRY)) for n in (3, 6)
    )
    for one, other in zip(few, many, strict=False):
        assert np.array_equal(one.prompt_token_ids, other.prompt_token_ids)
        assert (one.after, one.think_s) == (other.after, other.think_s)


def test_one_length_changed_leaves_the_others() -> None:
    short, long = (
        build(experiment(*SYNTHETIC, f"workload.output_tokens={n}", *DRY)) for n in (20, 40)
    )
    assert [request.think_s for request in short] == [request.think_s for request in long]
    first = [[len(o.prompt_token_ids) for o in some if o.turn == 0] for some in (short, long)]
    assert first[0] == first[1]


def test_a_turn_that_is_too_long_is_left_out_with_later_turns() -> None:
    words = (*SYNTHETIC, "workload.turns=9", "workload.turns_sigma=0")
    whole = build(experiment(*words, *DRY))
    result = build(experiment(*words, "workload.max_tokens=300", *DRY))
    short = [
        request for request in whole if len(request.prompt_token_ids) + request.output_tokens <= 300
    ]
    assert 0 < len(result) < len(whole)
    assert [(o.conversation, o.turn) for o in result] == [(o.conversation, o.turn) for o in short]


def test_conversations_arrive_and_not_their_turns() -> None:
    words = ("workload.arrival=poisson", "workload.rate_per_s=2")
    result = build(experiment(*SYNTHETIC, *words, *DRY))
    arrivals = [request.arrival_s for request in result if request.arrival_s is not None]
    assert len(arrivals) == 8
    assert arrivals == sorted(arrivals)


# --- the published traces


@pytest.fixture
def write(tmp_path: Path):
    def write(*rows: Any) -> Path:
        path = tmp_path / "trace.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def mooncake(path: Path | str, *words: str) -> list[Request]:
    return build(experiment("workload=mooncake", f"workload.path={path}", *words, *DRY))


def agents(path: Path | str, *words: str) -> list[Request]:
    return build(experiment("workload=agents", f"workload.path={path}", *words, *DRY))


def row(t: int, tokens: int, ids: list[Any], out: int = 5) -> dict[str, Any]:
    return {"timestamp": t, "input_length": tokens, "output_length": out, "hash_ids": ids}


def shares_as_published(found: list[Request], ids: list[list[int]], block: int) -> None:
    """Two prompts share exactly the tokens of the ids that they share from their starts."""
    for one, own in zip(found, ids, strict=True):
        for other, others in zip(found, ids, strict=True):
            common = prefix(np.array(own), np.array(others))
            shared = prefix(one.prompt_token_ids, other.prompt_token_ids)
            whole = min(len(one.prompt_token_ids), len(other.prompt_token_ids))
            assert shared // block == min(common * block, whole) // block


@pytest.mark.parametrize("block", [None, 64, 16])
def test_requests_of_mooncake_share_the_blocks_of_equal_ids(block: int | None) -> None:
    path = Path("config/traces/mooncake_conversation_40.jsonl").absolute()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    result = mooncake(path, *([f"workload.block_tokens={block}"] if block else []))
    size = block or 512
    shares_as_published(result, [row["hash_ids"] for row in rows], size)
    for one, published in zip(result, rows, strict=True):
        assert len(one.prompt_token_ids) == -(-published["input_length"] * size // 512)
        assert one.arrival_s == published["timestamp"] / 1000
        assert (one.output_token_ids, one.turn) == (None, None)


def published_turns(conversation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for request in conversation["requests"]:
        yield from published_turns(request) if request.get("type") == "subagent" else [request]


@pytest.mark.parametrize("block", [None, 8])
def test_agents_share_the_blocks_of_equal_ids_of_their_conversation(block: int | None) -> None:
    path = Path("config/traces/agents_6.jsonl").absolute()
    result = agents(path, *([f"workload.block_tokens={block}"] if block else []))
    size = block or 64
    ids, lengths = [], []
    for number, line in enumerate(path.read_text().splitlines()):
        for turn in published_turns(json.loads(line)):
            ids.append([number * 10**9 + i for i in turn["hash_ids"]])
            lengths.append((turn["in"] * size // 64, -(-turn["out"] * size // 64)))
    assert [(len(o.prompt_token_ids), o.output_tokens) for o in result] == lengths
    shares_as_published(result, ids, size)


def test_the_tokens_of_a_turn_are_those_of_the_next_prompt() -> None:
    result = agents(Path("config/traces/agents_6.jsonl").absolute())
    known, told = by_id(result), 0
    for request in result:
        for before in (known[name] for name in request.after):
            if before.conversation != request.conversation:
                continue
            said = np.concatenate([before.prompt_token_ids, outputs(before)])
            shared = prefix(said, request.prompt_token_ids)
            if shared >= len(before.prompt_token_ids) // 64 * 64:  # it goes on
                assert shared == min(len(said), len(request.prompt_token_ids))
                told += 1
    assert told > 20


def turn(tokens: int, ids: list[int], think: float | None = 0.0, out: int = 7, t: Any = 0) -> Any:
    made = {"t": t, "type": "n", "in": tokens, "out": out, "hash_ids": ids}
    return made if think is None else made | {"think_time": think}


def conversation(*requests: Any, **more: Any) -> dict[str, Any]:
    return {"id": "c", "block_size": 64, "hash_id_scope": "local", "requests": [*requests], **more}


def subagent(name: str, *requests: Any) -> dict[str, Any]:
    return {"t": 1.0, "type": "subagent", "agent_id": name, "requests": [*requests]}


def test_sub_agents_follow_their_parent_which_awaits_them(write) -> None:
    path = write(
        conversation(
            turn(70, [1]),
            subagent("a", turn(65, [7]), turn(70, [7], think=2)),
            subagent("b", turn(66, [8]), subagent("x", turn(64, [9]))),
            turn(140, [1, 2], think=3),
        )
    )
    result = agents(path, "workload.max_think_s=2.5", "workload.time_scale=2")
    assert [(o.conversation, o.turn, o.after, o.think_s) for o in result] == [
        ("c", 0, (), 0),
        ("c/a", 0, ("0",), 0),
        ("c/a", 1, ("1",), 4),
        ("c/b", 0, ("0",), 0),
        ("c/b/x", 0, ("3",), 0),
        ("c", 1, ("0", "2", "3", "4"), 5),
    ]


def test_ids_are_local_to_a_conversation_unless_they_are_global(write) -> None:
    for scope, shared in (("local", 0), ("global", 64)):
        path = write(*[conversation(turn(70, [1]), hash_id_scope=scope)] * 2)
        one, other = agents(path)
        assert prefix(one.prompt_token_ids, other.prompt_token_ids) == shared


def test_without_a_think_time_a_turn_keeps_its_distance_from_the_one_before(write) -> None:
    path = write(conversation(turn(70, [1], t=3), turn(80, [1], think=None, t=13.5)))
    assert agents(path)[1].think_s == 10.5


def test_conversations_without_a_turn_that_fits_do_not_count(write) -> None:
    path = write(
        conversation(turn(700, [*range(10)])),
        conversation(turn(70, [1]), turn(700, [*range(10)]), turn(80, [1])),
        conversation(turn(70, [1])),
    )
    result = agents(path, "workload.max_tokens=100", "workload.num_conversations=2")
    assert [len(request.prompt_token_ids) for request in result] == [70, 70]


def test_files_may_be_packed(write) -> None:
    import gzip

    path = write(row(0, 600, [1, 2]))
    packed = path.with_name("trace.jsonl.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    one, other = mooncake(path), mooncake(packed)
    assert np.array_equal(one[0].prompt_token_ids, other[0].prompt_token_ids)
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(BadInput, match=r"trace\.jsonl\.gz: not readable as text"):
        mooncake(packed)


REFUSED: dict[str, list[tuple[Any, str]]] = {
    "mooncake": [
        (row(0, 513, [1]), "has 1 hash_ids, but its prompt has 2 blocks, rounded up"),
        (row(0, 512, [1, 2]), "has 2 hash_ids, but its prompt has 1 blocks"),
        (row(0, 0, []), "input_length is 0 but must be a whole number of 1"),
        (row(0, 9, ["x"]), "must be a list of whole numbers"),
        (row(-1, 9, [1]), "timestamp is -1 but must be a number of 0"),
        ([1], "not a JSON object"),
    ],
    "agents": [
        (conversation(turn(64, [])), "has 0 hash_ids, but its prompt has 1 blocks, rounded down"),
        (conversation(turn(64, [1]), block_size=16), "block_size is 16 but must be 64"),
        (conversation(turn(64, [1]), hash_id_scope="x"), "must be local or global"),
        (conversation(), "has no requests"),
        (conversation(subagent("a", turn(64, [1]))), "begins with a sub-agent"),
        (conversation(turn(64, [1]), turn(64, [1], think=-1)), "think_time is -1"),
        (conversation(turn(64, [1]), turn(64, [1], think=None, t="x")), "t is 'x'"),
        (conversation(3), "must be a list of JSON objects"),
    ],
}


@pytest.mark.parametrize(
    ("workload", "content", "said"), [(w, *case) for w, cases in REFUSED.items() for case in cases]
)
def test_bad_lines_are_refused_with_their_place(write, workload, content, said) -> None:
    path = write(content)
    with pytest.raises(BadInput) as refused:
        build(experiment(f"workload={workload}", f"workload.path={path}", *DRY))
    assert said in str(refused.value)
    assert f"{path}:1: " in str(refused.value)


@pytest.mark.parametrize(
    ("passes", "said"),
    [
        ({}, "arrival_pass is None but must be a whole number of 0"),
        ({"arrival_pass": -1}, "arrival_pass is -1 but must be a whole number of 0"),
        ({"arrival_pass": 4, "abort_pass": 3}, "abort_pass is 3 but must be a whole number of 4"),
    ],
)
def test_a_request_that_comes_before_no_pass_is_refused(write, passes, said) -> None:
    path = write(row(0, 9, [1]) | passes)
    words = ("workload=mooncake", f"workload.path={path}", "workload.arrival=passes")
    with pytest.raises(BadInput, match=f"{path}:1: {said}"):
        build(experiment(*words, *DRY))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["workload=conversation", "workload.timeout_s=3"],
            "workload.timeout_s (3.0) must be null",
        ),
        (["workload=agents", "workload.timeout_s=3"], "workload.timeout_s (3.0) must be null"),
        (["workload=conversation", "workload.arrival=trace"], "has no arrival times"),
        (["workload=conversation", "workload.arrival=passes"], "conversation names no passes"),
        (
            ["workload=mooncake", "workload.arrival=passes", "workload.timeout_s=3"],
            "workload.timeout_s (3.0) must be null",
        ),
        (["workload=agents", f"workload.sha256={'0' * 64}"], "workload.sha256 is"),
    ],
)
def test_impossible_settings_are_refused_when_planned(words: list[str], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        experiment(*words)
    assert said in str(refused.value)


def test_more_conversations_than_there_are_is_refused() -> None:
    with pytest.raises(BadInput, match="is to have 7 conversations, but there are 6"):
        build(experiment("workload=agents", "workload.num_conversations=7", *DRY))


def test_a_request_that_is_too_long_names_the_remedy() -> None:
    with pytest.raises(BadInput, match=r"workload\.max_tokens leaves longer requests out"):
        build(experiment("workload=agents"))
