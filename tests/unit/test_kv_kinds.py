"""How many blocks a request holds of each kind of KV group, by which tokens are attended to."""

import numpy as np
import pytest

from kvscope.tables.kv_group import KvGroup
from kvscope.tables.kv_kinds import (
    CHUNKED_LOCAL,
    FULL,
    MAMBA,
    MLA,
    SLIDING_WINDOW,
    SLIDING_WINDOW_MLA,
    KvKind,
    all_known,
    by_vllm_name,
    keep_all_together,
    kind_of,
    registered,
)
from kvscope.tables.kv_plan import held_blocks, keeps_state, unless_movable

LONGEST = 70
PAIRS = [(context, tokens) for tokens in range(1, LONGEST) for context in range(tokens)]


def attended(kind: KvKind, token: int, window: int) -> range:
    """The tokens that a token attends to, by the definition of its kind of attention."""
    first = {SLIDING_WINDOW: token - window + 1, CHUNKED_LOCAL: token // window * window}
    return range(max(0, first.get(kind, 0)), token + 1)


@pytest.mark.parametrize("kind", [FULL, SLIDING_WINDOW, CHUNKED_LOCAL])
@pytest.mark.parametrize(("block", "window"), [(4, 8), (4, 9), (8, 3), (5, 7)])
def test_blocks_are_held_that_some_token_to_come_attends_to(kind: KvKind, block: int, window: int):
    for context, tokens in PAIRS:
        needed = {
            other // block
            for token in range(context, tokens)
            for other in attended(kind, token, window)
        }
        assert kind.held_blocks(context, tokens, block, window) == len(needed), (context, tokens)


@pytest.mark.parametrize("kind", [MAMBA, *registered().values()], ids=lambda kind: kind.vllm_name)
def test_arrays_are_as_numbers(kind: KvKind):
    contexts, tokens = np.array(PAIRS).T
    for window in (0, 8):
        blocks = [kind.held_blocks(*pair, 4, window) for pair in PAIRS]
        assert kind.held_blocks(contexts, tokens, 4, window).tolist() == blocks


@pytest.mark.parametrize("kind", registered().values(), ids=lambda kind: kind.vllm_name)
def test_a_request_is_admitted_with_no_fewer_blocks_than_it_holds(kind: KvKind):
    """Whatever it has computed, if a pass computes at most so many tokens of it."""
    for pass_tokens in (1, 16, LONGEST):
        admitted = kind.admitted_blocks(LONGEST, pass_tokens, 4, 8 if kind.window else 0)
        held = [
            kind.held_blocks(context, tokens, 4, 8 if kind.window else 0)
            for context, tokens in PAIRS
            if tokens - context <= pass_tokens
        ]
        assert max(held) <= admitted


def test_a_state_is_one_block_whatever_the_length():
    assert {MAMBA.held_blocks(*pair, 4, 0) for pair in PAIRS} == {1}
    assert MAMBA.admitted_blocks(LONGEST, 16, 4, 0) == 1


def test_a_window_that_is_not_known_lets_go_of_nothing():
    for kind in registered().values():
        if kind.window:
            assert kind.held_blocks(60, 64, 4, 0) == FULL.held_blocks(60, 64, 4, 0) == 16


def test_each_kind_has_a_name_of_its_own_in_vllm():
    assert len(by_vllm_name()) == len(registered())
    assert {FULL, MLA, SLIDING_WINDOW, SLIDING_WINDOW_MLA} < {*by_vllm_name().values()}


def test_a_kind_that_no_package_has_keeps_all_tokens_and_is_not_known():
    assert kind_of("Unheard").held_blocks(3, 9, 4, 2) == 3
    assert not all_known(["FullAttention", "Unheard"])
    assert not keep_all_together(["Unheard"])


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["FullAttention"], True),
        (["MLAAttention"], True),
        (["FullAttention", "FullAttention"], False),
        (["SlidingWindow"], False),
        (["Mamba"], False),
        ([], False),
    ],
)
def test_blocks_follow_from_tokens_of_one_group_that_keeps_all(kinds: list[str], expected: bool):
    assert keep_all_together(kinds) == expected


def test_a_group_holds_the_blocks_of_its_kind():
    group = KvGroup("SlidingWindow", 2, 4, 64, 64, 64, window_tokens=8)
    contexts, tokens = np.array([[0, 20, 21], [4, 21, 22]])
    assert held_blocks(group, contexts, tokens).tolist() == [1, 3, 3]
    assert not keeps_state(group)
    assert keeps_state(KvGroup("Mamba", 1, 4, 8, 8, 8))


def test_blocks_of_equal_tokens_without_states_are_moved_together():
    full, window = (KvGroup(kind, 1, 4, 8, 8, 8) for kind in ("FullAttention", "SlidingWindow"))
    larger, state = KvGroup("FullAttention", 1, 8, 8, 8, 8), KvGroup("Mamba", 1, 4, 8, 8, 8)
    assert unless_movable([full, window], "overflow=swap") == ""
    for other, named in ((larger, "FullAttention of 8 tokens"), (state, "Mamba")):
        refusal = unless_movable([full, other], "overflow=swap")
        assert refusal.startswith("overflow=swap needs ")
        assert f"are FullAttention of 4 tokens, {named};" in refusal
