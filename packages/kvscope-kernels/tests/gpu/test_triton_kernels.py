"""The CUDA kernels compute attention, and record exactly what the contract says.

Triton's interpreter runs them on the CPU; it cannot multiply bfloat16 matrices, nor read clocks: a
counter of stamps taken stands in.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from cuda_cases import CASES, LAYER
from triton_process import Interpreter

UNTOUCHED = -0x5555555555555556
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def ranges(headers: Iterable[np.void]) -> np.ndarray:
    """Indices of the events that the segments say they hold."""
    return np.concatenate([np.arange(h["place"], h["place"] + h["events"]) for h in headers])


def described(events: np.ndarray) -> Counter:
    names = ["kind", "row", "kv_head", "block_position", "offset_tokens", "tokens"]
    return Counter(events[names].tolist())


@every_case
def test_output_is_that_of_plain_attention(interpreter: Interpreter, case):
    outcome = interpreter("attention", case)
    tolerance = 2e-3 if case.dtype == "float16" else 1e-5
    np.testing.assert_allclose(outcome.output, outcome.expected, rtol=tolerance, atol=tolerance)


@every_case
def test_recording_changes_no_bit(interpreter: Interpreter, case):
    on, off = interpreter("attention", case), interpreter("uninstrumented", case)
    np.testing.assert_array_equal(on.output, off.output)
    np.testing.assert_array_equal(on.cache, off.cache)
    assert (off.words == UNTOUCHED).all()


@every_case
def test_events_are_exactly_the_expected_ones(interpreter: Interpreter, case):
    outcome = interpreter("attention", case)
    written, read = outcome.events[ranges(outcome.writes)], outcome.events[ranges(outcome.reads)]
    assert described(written) == case.writes()
    assert described(read) == case.reads()
    for events in (written, read):
        assert (events["layer"] == LAYER).all()
        assert (events["flags"] == 0).all()
        in_table = outcome.table[events["row"], events["block_position"]]
        np.testing.assert_array_equal(events["block"], in_table)
    assert not outcome.writes["dropped"].any()
    assert not outcome.reads["dropped"].any()


@every_case
def test_a_segment_is_in_the_order_of_its_work(interpreter: Interpreter, case):
    outcome = interpreter("attention", case)
    for header in (*outcome.writes, *outcome.reads):
        events = outcome.events[ranges([header])]
        ends = events["start_ticks"] + events["duration_ticks"]
        bounds = [header["start_clock"], *np.stack((events["start_ticks"], ends), 1).ravel()]
        assert (np.diff([int(x) for x in (*bounds, header["end_clock"])]) > 0).all()
        assert header["start_timer"] < header["end_timer"]
        # K before V of the same block, and no block between them.
        assert (events["kind"][::2] % 2 == 0).all()
        assert (events["kind"][1::2] == events["kind"][::2] + 1).all()
        np.testing.assert_array_equal(events["block"][::2], events["block"][1::2])


@every_case
def test_nothing_is_written_elsewhere(interpreter: Interpreter, case):
    outcome = interpreter("attention", case)
    kept = np.concatenate((ranges(outcome.writes), ranges(outcome.reads)))
    assert len(set(kept)) == len(kept)
    assert (np.delete(outcome.words, kept, axis=0) == UNTOUCHED).all()


@pytest.mark.parametrize("capacity", [0, 7, 30])
@pytest.mark.parametrize("name", ["decode, GQA, split", "chunks, GQA, odd sizes"])
def test_events_without_room_are_counted_and_left_out(interpreter: Interpreter, name, capacity):
    case = CASES[name]
    ample, scarce = interpreter("attention", case), interpreter("overflowing", case, capacity)
    np.testing.assert_array_equal(scarce.output, ample.output)
    for all_of, some in ((ample.writes, scarce.writes), (ample.reads, scarce.reads)):
        np.testing.assert_array_equal(some["events"] + some["dropped"], all_of["events"])
        np.testing.assert_array_equal(some["place"], all_of["place"])
    kept = np.concatenate((ranges(scarce.writes), ranges(scarce.reads)))
    owned = np.concatenate((ranges(ample.writes), ranges(ample.reads)))
    assert sorted(kept) == sorted(owned[owned < capacity])
    np.testing.assert_array_equal(scarce.words[kept], ample.words[kept])
    assert (np.delete(scarce.words, kept, axis=0) == UNTOUCHED).all()


def test_some_sequences_are_split(interpreter: Interpreter):
    splits = {name: interpreter("attention", case).splits for name, case in CASES.items()}
    assert {name for name, count in splits.items() if count > 1} == {
        name for name in CASES if "split" in name
    }


def test_a_token_without_a_slot_is_neither_written_nor_recorded(interpreter: Interpreter):
    case = CASES["decode, MHA"]
    outcome = interpreter("attention", case, True, 1)
    written = outcome.events[ranges(outcome.writes)]
    assert set(written["row"]) == {0, 2}
    assert outcome.writes["events"].tolist() == [2, 0, 2]
    assert not outcome.writes["dropped"].any()
    block, slot = outcome.table[1, 17 // 16], 17 % 16
    assert np.isnan(outcome.cache[block, :, slot]).all()


def test_only_recorded_heads_have_segments(interpreter: Interpreter):
    case = CASES["mixed, every other head"]
    outcome = interpreter("attention", case)
    assert set(outcome.events[ranges(outcome.reads)]["kv_head"]) == {0, 2, 4}
    tiles = 1 + -(-20 // case.tile)
    assert len(outcome.reads) == 3 * tiles


def test_the_timer_is_read_in_order(interpreter: Interpreter):
    step, sample = interpreter("timer")
    assert step == 1
    assert sample.ticks > 0
    assert sample.uncertainty_ns > 0
