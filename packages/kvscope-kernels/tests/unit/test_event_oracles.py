"""Oracles accept the records of a correct engine, whatever the batch, and name faults."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.collect.traces import verdicts
from kvscope.report.reasons import reason_in_words
from kvscope.tables.verdict import HELD, NOT_APPLICABLE, VIOLATED
from kvscope_kernels.collect.clock import EventClock
from kvscope_kernels.collect.flushes import Flush, parse_flush
from kvscope_kernels.oracles.judge import Judge
from kvscope_kernels.oracles.registry import ALL_ORACLES, NAMES
from kvscope_kernels.oracles.run_facts import FoundBlocks, LayerTimes, RunFacts, Schedule, Sizes
from kvscope_kernels.reader import READER
from tests.unit.kv_flushes import COLUMNS, K_READ, K_WRITE, V_READ, V_WRITE, Batch, tracing

FILE = Path("kernel_events.jsonl.zst")
CLOCK = EventClock.of_run(tracing((0, 0), (10**9, 10**9)), FILE)
Found = dict[str, Any]

# A mixed batch: a chunk in the middle of a prompt, a decode, a prompt from its start.
MIXED = Batch([(20, 25), (70, 1), (0, 33)], block_size=16, tile_tokens=10, kv_heads=[1, 4])
ROW, HEAD, BLOCK, POSITION, OFFSET, TOKENS, START, DURATION = range(1, 9)


def flush_of(found: Found) -> Flush:
    return parse_flush(orjson.dumps(found), FILE, 1)


def violations(*flushes: Found, **known: Any) -> dict[str, int]:
    judge = Judge(RunFacts(CLOCK, **known))
    for found in flushes:
        judge.add(flush_of(found))
    return {n: v["violations"] for n, v in judge.account().items() if v["violations"]}


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    block_size = draw(st.sampled_from([1, 2, 3, 16, 32, 256]) | st.integers(1, 256))
    near_a_boundary = st.sampled_from([0, 1, block_size - 1, block_size, block_size + 1])
    tokens = near_a_boundary | st.integers(0, 90)
    scheduled = st.just(1) | tokens.map(lambda n: max(n, 1))
    return Batch(
        rows=draw(st.lists(st.tuples(tokens, scheduled), min_size=1, max_size=5)),
        block_size=block_size,
        tile_tokens=draw(st.integers(1, 70)),
        kv_heads=sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=4))),
        threads=draw(st.integers(1, 4)),
        gpu=draw(st.booleans()),
        origin_ticks=draw(st.integers(0, 2**62)),
        seed=draw(st.integers(0, 1000)),
    )


@given(batches())
def test_records_of_a_correct_engine_violate_no_oracle(batch: Batch) -> None:
    assert violations(batch.flush()) == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found.update(block_table=None), "no block table"),
        (lambda found: found["kernels"][0].update(start_ticks=None), "a kernel without times"),
        (lambda found: found.update(tile_tokens=11), "tile_tokens is 11, run.json has 10"),
    ],
)
def test_kvscope_s_own_flushes_lack_nothing(change: Callable[[Found], Any], words: str) -> None:
    known: dict[str, Any] = {"traced_layers": [0], "sizes": Sizes(16, 10)}
    sound = MIXED.flush()
    assert "flush_incomplete" not in violations(sound, **known)
    found = copy.deepcopy(sound)
    change(found)
    judge = Judge(RunFacts(CLOCK, **known))
    judge.add(flush_of(found))
    assert words in judge.account()["flush_incomplete"]["first"]
    assert "flush_incomplete" not in violations(found)  # an import may lack it


def test_every_oracle_is_reported_even_if_it_had_nothing_to_check() -> None:
    verdict = Judge(RunFacts(CLOCK)).account()
    assert tuple(verdict) == NAMES
    assert all(found == {"violations": 0, "first": "", "looked": 0} for found in verdict.values())
    assert {found.state for found in verdicts(READER, verdict)} == {NOT_APPLICABLE}


def test_every_oracle_says_in_a_sentence_what_must_hold() -> None:
    sentences = [oracle.sentence for oracle in ALL_ORACLES]
    assert all(sentence.endswith(".") for sentence in sentences)
    assert len({*sentences}) == len({*NAMES}) == len(ALL_ORACLES)


def test_a_verdict_may_be_asked_for_again() -> None:
    judge = Judge(RunFacts(CLOCK, **DUE))
    judge.add(flush_of(traced_in((0, 0))[0]))
    assert judge.account()["passes_missing"]["violations"] == 3
    assert judge.account() == judge.account()


def test_a_verdict_distinguishes_oracles_that_held_from_those_that_did_not_apply() -> None:
    judge = Judge(RunFacts(CLOCK))
    judge.add(flush_of(lose(lambda r: r[0] != V_READ)(MIXED.flush())))
    states = {found.name: found.state for found in verdicts(READER, judge.account())}
    assert states["v_reads_missing"] == VIOLATED
    assert states["k_reads_missing"] == HELD
    assert states["passes_missing"] == states["batch_differs"] == NOT_APPLICABLE


def test_an_older_account_is_read_as_far_as_it_goes() -> None:
    old = {"k_reads_missing": {"violations": 0, "first": ""}}
    states = {found.name: found.state for found in verdicts(READER, old)}
    assert states.pop("k_reads_missing") == HELD
    assert {*states.values()} == {NOT_APPLICABLE}


# --- corruptions: each takes a correct flush and does to it what a broken engine would do


def edited(found: Found, edit: Callable[[list[list[int]], Found], None]) -> Found:
    """The flush with its events edited as a list of rows; segments count their remaining events."""
    found = copy.deepcopy(found)
    rows = [list(row) for row in zip(*(found["events"][name] for name in COLUMNS), strict=True)]
    owners = [i for i, n in enumerate(found["segments"]["events"]) for _ in range(n)]
    owned = [[*row, owner] for row, owner in zip(rows, owners, strict=True)]
    edit(owned, found)
    owned.sort(key=lambda row: row[-1])  # stable
    found["events"] = {name: [row[i] for row in owned] for i, name in enumerate(COLUMNS)}
    count = [row[-1] for row in owned].count
    found["segments"]["events"] = [count(i) for i in range(len(found["segments"]["events"]))]
    return found


def lose(keep: Callable[[list[int]], bool]) -> Callable[[Found], Found]:
    def edit(rows: list[list[int]], found: Found) -> None:
        rows[:] = [row for row in rows if keep(row)]

    return lambda found: edited(found, edit)


def change(which: Callable[[list[int]], bool], **to: Any) -> Callable[[Found], Found]:
    """Columns of some events, each by a function of its value."""

    def edit(rows: list[list[int]], found: Found) -> None:
        chosen = [row for row in rows if which(row)]
        assert chosen
        for row in chosen:
            for column, new in to.items():
                place = COLUMNS.index(column)
                row[place] = new(row[place])

    return lambda found: edited(found, edit)


def first(kind: int) -> Callable[[list[int]], bool]:
    """Chooses the first event of a kind, once."""
    met: list[int] = []

    def chosen(row: list[int]) -> bool:
        if row[0] == kind and not met:
            met.append(1)
            return True
        return False

    return chosen


def is_kind(*kinds: int) -> Callable[[list[int]], bool]:
    return lambda row: row[0] in kinds


def repeat_first(kind: int) -> Callable[[Found], Found]:
    """Repeat the first access right after itself."""

    def edit(rows: list[list[int]], found: Found) -> None:
        place = next(i for i, row in enumerate(rows) if row[0] == kind)
        again = list(rows[place])
        half = again[DURATION] // 2
        rows[place][DURATION] = half
        again[START], again[DURATION] = again[START] + half, half
        rows.insert(place + 1, again)

    return lambda found: edited(found, edit)


def overwritten(rows: list[list[int]], found: Found) -> None:
    """The second worker's segment began too early in the buffer: it lies over the first's end."""
    reads = [row for row in rows if row[0] <= V_READ]
    first_owner, second_owner = sorted({row[-1] for row in reads})[:2]
    ends = [row for row in reads if row[-1] == first_owner][-6:]
    begins = [row for row in reads if row[-1] == second_owner][:6]
    for lost, instead in zip(ends, begins, strict=True):
        lost[:-1] = instead[:-1]


def stale(rows: list[list[int]], found: Found) -> None:
    """The counter ran on: after its events, a segment shows what an earlier pass had left there."""
    last = [row for row in rows if row[0] == V_READ][-1]
    left = list(last)
    left[START] -= 100_000
    rows.insert(rows.index(last) + 1, left)


def swap_k_and_v(rows: list[list[int]], found: Found) -> None:
    """Kinds of the attention kernel's events the wrong way round."""
    for row in rows:
        if row[0] <= V_READ:
            row[0] = V_READ - row[0]


def late_k(rows: list[list[int]], found: Found) -> None:
    """A worker that has V of its second request before K: events of one item in another order."""
    k = next(i for i, row in enumerate(rows) if row[0] == K_READ)
    item = [row for row in rows if row[1:3] == rows[k][1:3] and row[0] == V_READ]
    v = next(row for row in item if row[POSITION] == rows[k][POSITION])
    rows[k][0], v[0] = V_READ, K_READ


def in_kernels(key: str, by: int) -> Callable[[Found], Found]:
    def corrupt(found: Found) -> Found:
        found = copy.deepcopy(found)
        for kernel in found["kernels"]:
            kernel[key] += by
        return found

    return corrupt


def drop_some(found: Found) -> Found:
    found = copy.deepcopy(found)
    found["segments"]["dropped"][0] = 7
    return found


def longer(found: Found) -> Found:
    """The batch has a token more than the kernel was told: off by one in its last block."""
    found = copy.deepcopy(found)
    found["context_tokens"][1] += 1
    return found


CORRUPTIONS: dict[str, tuple[Callable[[Found], Found], set[str]]] = {
    "V reads lost": (lose(lambda r: r[0] != V_READ or r[POSITION] < 2), {"v_reads_missing"}),
    "a K read lost": (
        lose(lambda r: not (r[0] == K_READ and r[POSITION] == 4)),
        {"k_reads_missing"},
    ),
    "one head only": (
        lose(lambda r: r[HEAD] != 4),
        {"heads_missing", "k_reads_missing", "v_reads_missing"},
    ),
    "heads collapsed onto one": (
        change(lambda r: r[HEAD] == 4, kv_head=lambda _: 1),
        {"heads_missing", "reads_repeated", "k_reads_missing", "v_reads_missing"},
    ),
    "a head that is not traced": (
        change(lambda r: r[HEAD] == 4 and r[POSITION] == 0, kv_head=lambda _: 3),
        {"heads_missing", "k_reads_missing", "v_reads_missing"},
    ),
    "a read twice": (repeat_first(V_READ), {"reads_repeated"}),
    "a read of a stranger": (
        change(first(K_READ), row=lambda _: 9),
        {"reads_repeated", "k_reads_missing", "block_not_in_table"},
    ),
    "a read past the context": (
        change(first(V_READ), block_position=lambda _: 40),
        {"reads_repeated", "v_reads_missing", "block_not_in_table"},
    ),
    "off by one in the last block": (
        longer,
        {"tokens_misread", "tokens_not_written", "tokens_written_twice"},
    ),
    "a part of a block for the whole": (
        change(lambda r: r[0] == K_READ and r[TOKENS] == 16, tokens=lambda n: n - 3),
        {"tokens_misread"},
    ),
    "the whole block for the tile's part": (
        change(lambda r: r[0] == V_READ and r[TOKENS] < 16, tokens=lambda _: 16),
        {"tokens_misread"},
    ),
    "another tile's part": (
        change(lambda r: r[0] == V_READ and r[ROW] == 2 and r[TOKENS] == 10, tokens=lambda _: 16),
        {"tokens_misread"},
    ),
    "offsets where reads have none": (
        change(is_kind(K_READ), offset_tokens=lambda _: 1),
        {"tokens_misread", "tokens_outside_block"},
    ),
    "K and V swapped": (lambda f: edited(f, swap_k_and_v), {"v_read_before_k"}),
    "V before its K": (lambda f: edited(f, late_k), {"v_read_before_k"}),
    "no K write at all": (lose(lambda r: r[0] != K_WRITE), {"tokens_not_written"}),
    "a token's V not written": (
        change(lambda r: r[0] == V_WRITE and r[TOKENS] > 1, tokens=lambda n: n - 1),
        {"tokens_not_written"},
    ),
    "a token written twice": (
        change(
            lambda r: r[0] == V_WRITE and r[POSITION] == 1 and r[ROW] == 2,
            offset_tokens=lambda _: 1,
        ),
        {"tokens_written_twice", "tokens_not_written", "tokens_outside_block"},
    ),
    "a block written twice": (repeat_first(K_WRITE), {"tokens_written_twice"}),
    "a stranger's token written": (
        change(first(V_WRITE), row=lambda _: 5),
        {"tokens_written_twice", "tokens_not_written", "block_not_in_table"},
    ),
    "a wrong block": (change(first(V_READ), block=lambda b: b + 1), {"block_not_in_table"}),
    "a wrong block written": (change(is_kind(K_WRITE), block=lambda _: 0), {"block_not_in_table"}),
    "events dropped": (drop_some, {"events_dropped"}),
    "overlapping events": (
        change(first(K_READ), duration_ticks=lambda d: d + 50),
        {"events_overlap"},
    ),
    "segments over one another": (
        lambda f: edited(f, overwritten),
        {"events_overlap", "reads_repeated", "k_reads_missing", "v_reads_missing"},
    ),
    "an event of an earlier pass": (
        lambda f: edited(f, stale),
        {"events_overlap", "event_outside_kernel", "reads_repeated"},
    ),
    "kernels that end too early": (in_kernels("end_ticks", -300), {"event_outside_kernel"}),
    "kernels that begin too late": (in_kernels("start_ticks", 60), {"event_outside_kernel"}),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_caught_under_its_name(name: str) -> None:
    corrupt, expected = CORRUPTIONS[name]
    flush = MIXED.flush()
    assert violations(flush) == {}
    caught = set(violations(corrupt(flush)))
    # Losing a read may also undo the pairs that order and overlap are judged by, never more.
    assert expected <= caught
    assert caught <= expected | {"events_overlap", "v_read_before_k"}


def test_counts_are_of_events_and_the_first_says_where() -> None:
    flush = Batch([(63, 1), (31, 1)], block_size=16, kv_heads=[0, 4], step=12, layer=3).flush()
    judge = Judge(RunFacts(CLOCK))
    judge.add(flush_of(lose(lambda r: r[0] != V_READ or r[POSITION] < 3)(flush)))
    assert judge.account()["v_reads_missing"] == {
        "violations": 2,
        "first": "repeat 0, step 12, layer 3: request 100, head 0, block position 3: "
        "0 v_read events, 1 expected",
        "looked": 1,
    }


@pytest.mark.parametrize(("slot", "kind"), [(0, "K"), (1, "V")])
def test_a_write_kernel_may_record_each_token_by_itself(slot: int, kind: str) -> None:
    def split(rows: list[list[int]], found: Found) -> None:
        for row in [row for row in rows if row[0] == K_WRITE + slot]:
            place = rows.index(row)
            each = [list(row) for _ in range(row[TOKENS])]
            for i, one in enumerate(each):
                one[OFFSET], one[TOKENS] = row[OFFSET] + i, 1
                one[START], one[DURATION] = row[START] + i, 1
            rows[place : place + 1] = each

    assert violations(edited(MIXED.flush(), split)) == {}, kind


def test_a_gpu_s_thread_block_that_ran_outside_of_its_kernel_is_caught() -> None:
    flush = Batch([(40, 1)], gpu=True).flush()
    flush["segments"]["end_timer"][-1] += 10_000
    assert violations(flush) == {"event_outside_kernel": 1}


# --- blocks: in the cache, of one request, where they were


def test_every_access_is_compared_with_the_block_at_its_position() -> None:
    flush = MIXED.flush()
    rows = [*zip(*(flush["events"][name] for name in COLUMNS), strict=True)]
    for place, row in enumerate(rows):
        wrong = copy.deepcopy(flush)
        wrong["events"]["block"][place] += 1
        assert violations(wrong) == {"block_not_in_table": 1}, row
    assert {row[0] for row in rows if row[POSITION] > 1} == {K_READ, V_READ, K_WRITE, V_WRITE}


def shifted(found: Found, by: int) -> Found:
    """The flush with every block's number raised, in its table as in its events."""
    found = copy.deepcopy(found)
    found["events"]["block"] = [block + by for block in found["events"]["block"]]
    found["block_table"] = [[block + by for block in row] for row in found["block_table"]]
    return found


def test_blocks_are_those_of_the_cache() -> None:
    flush = MIXED.flush()
    blocks = [block for row in flush["block_table"] for block in row]
    assert violations(flush, blocks=max(blocks)) == {}
    assert set(violations(flush, blocks=max(blocks) - 1)) == {"block_outside_cache"}
    assert set(violations(shifted(flush, 1), blocks=max(blocks))) == {"block_outside_cache"}
    assert set(violations(shifted(flush, -min(blocks)))) == set()
    assert set(violations(shifted(flush, -min(blocks)), blocks=10**6)) == {"block_outside_cache"}


def test_a_block_has_one_owner() -> None:
    flush = MIXED.flush()
    shared = flush["block_table"][0][1]
    instead, flush["block_table"][2][0] = flush["block_table"][2][0], shared
    flush["events"]["block"] = [shared if b == instead else b for b in flush["events"]["block"]]
    assert violations(flush) == {"block_owned_twice": 1}


def shares_a_block() -> Found:
    """MIXED, in which the second request has the first block of the first request."""
    flush = MIXED.flush()
    shared = flush["block_table"][0][0]
    instead, flush["block_table"][1][0] = flush["block_table"][1][0], shared
    flush["events"]["block"] = [shared if b == instead else b for b in flush["events"]["block"]]
    return flush


def found_blocks(*rows: tuple[str, int, int, int], **preempted: list[int]) -> FoundBlocks:
    """Found blocks with these (request, step, block, position)."""
    hits = pd.DataFrame(rows, columns=["request_id", "step", "block", "block_position"])
    lost = {(0, request): steps for request, steps in preempted.items()}
    return FoundBlocks(hits.assign(repeat=0), lost)


def test_requests_share_the_blocks_that_they_found() -> None:
    flush = shares_a_block()
    block = flush["block_table"][0][0]
    assert violations(flush) == {"block_owned_twice": 1}
    assert violations(flush, found=found_blocks(("101", 0, block, 0))) == {}
    both = found_blocks(("100", 0, block, 0), ("101", 0, block, 0))
    assert violations(flush, found=both) == {}


def test_a_block_is_shared_at_the_position_where_it_was_found() -> None:
    flush = shares_a_block()
    block = flush["block_table"][0][0]
    elsewhere = violations(flush, found=found_blocks(("101", 0, block, 1)))
    assert elsewhere == {"block_owned_twice": 1, "hit_not_in_table": 1}
    other = violations(flush, found=found_blocks(("101", 0, block, 0), ("101", 0, 999, 1)))
    assert other == {"hit_not_in_table": 1}


def test_a_preempted_request_has_lost_its_hits() -> None:
    flush = shares_a_block() | {"step": 7}
    block = flush["block_table"][0][0]
    before = found_blocks(("101", 3, block, 0), **{"101": [5]})
    assert violations(flush, found=before) == {"block_owned_twice": 1}
    again = found_blocks(("101", 3, 9, 0), ("101", 6, block, 0), **{"101": [5]})
    assert violations(flush, found=again) == {}


def test_no_write_goes_on_beyond_its_block() -> None:
    """A write claims to have put into the first block what two writes put into two blocks."""

    def joined(rows: list[list[int]], found: Found) -> None:
        for kind in (K_WRITE, V_WRITE):
            begin, end = (
                next(r for r in rows if r[0] == kind and r[ROW] == 2 and r[POSITION] == position)
                for position in (0, 1)
            )
            begin[TOKENS] += end[TOKENS]
            rows.remove(end)

    assert violations(edited(MIXED.flush(), joined)) == {"tokens_outside_block": 2}


@pytest.mark.parametrize(("offset", "tokens"), [(0, 0), (3, 0), (-1, 1), (5, -5), (16, 1)])
def test_an_event_is_of_tokens_of_its_block(offset: int, tokens: int) -> None:
    def put(rows: list[list[int]], found: Found) -> None:
        rows[0][OFFSET], rows[0][TOKENS] = offset, tokens

    assert violations(edited(MIXED.flush(), put))["tokens_outside_block"] == 1


def test_each_segment_of_a_kernel_is_of_another_worker() -> None:
    flush = MIXED.flush()
    segments = flush["segments"]
    assert len({*segments["worker"]}) == 2
    one = flush | {"segments": segments | {"worker": [0] * len(segments["worker"])}}
    assert violations(one) == {"worker_repeated": 2}  # of either kernel


def grown(*steps: int, layers: int = 2, **changed: Any) -> list[Found]:
    """Flushes of one request over some passes, a token a pass, all layers."""
    made = []
    for step in steps:
        for layer in range(layers):
            flush = Batch([(62 + step, 1), (20, 1)], step=step, layer=layer).flush()
            spare = shifted(Batch([(62 + 9, 1), (20, 1)]).flush(), 100)["block_table"]
            made.append(retabled(flush, spare) | changed)
    return made


def retabled(found: Found, table: list[list[int]]) -> Found:
    """The flush with other blocks."""
    old = [block for row in found["block_table"] for block in row]
    found["block_table"] = [
        row[: len(before)] for row, before in zip(table, found["block_table"], strict=True)
    ]
    new = [block for row in found["block_table"] for block in row]
    where = dict(zip(old, new, strict=True))
    found["events"]["block"] = [where[block] for block in found["events"]["block"]]
    return found


def test_a_request_keeps_its_blocks_and_gets_more() -> None:
    flushes = grown(0, 1, 2, 3)
    assert len(flushes[0]["block_table"][0]) < len(flushes[-1]["block_table"][0])
    assert violations(*flushes, preempted={}) == {}


@pytest.mark.parametrize("place", range(1, 8))
def test_blocks_that_move_are_noticed(place: int) -> None:
    """In another layer of a pass as from one pass to the next: here all numbers are one higher."""
    flushes = grown(0, 1, 2, 3)
    flushes[place] = shifted(flushes[place], 1)
    assert set(violations(*flushes, preempted={})) == {"blocks_moved"}
    assert violations(*flushes) == {}  # nobody knows who was preempted


def test_a_preempted_request_has_other_blocks() -> None:
    flushes = grown(0, 1) + [shifted(found, 7) for found in grown(2, 3)]
    both = {(0, request): [2] for request in flushes[0]["requests"]}
    assert violations(*flushes, preempted=both) == {}
    for step in (1, 3):
        wrong = {owner: [step] for owner in both}
        assert set(violations(*flushes, preempted=wrong)) == {"blocks_moved"}


def test_another_repeat_has_other_blocks() -> None:
    flushes = grown(0, 1) + [shifted(found, 7) | {"repeat": 1} for found in grown(0, 1)]
    assert violations(*flushes, preempted={}) == {}


# --- layers and passes


def traced_in(*places: tuple[int, int]) -> list[Found]:
    return [Batch([(20, 1)], step=step, layer=layer).flush() for step, layer in places]


DUE: Found = {"traced_layers": [0, 2], "passes": frozenset({(0, 0), (0, 4)})}
ALL = ((0, 0), (0, 2), (4, 0), (4, 2))


def test_every_traced_layer_of_every_traced_pass_comes_once() -> None:
    assert violations(*traced_in(*ALL), **DUE) == {}


@pytest.mark.parametrize(
    ("places", "caught"),
    [
        (ALL[:-1], {"passes_missing": 1}),
        (ALL[:2], {"passes_missing": 2}),
        ((*ALL, (4, 2)), {"passes_missing": 1}),
        ((*ALL[:2], (4, 0), (4, 0)), {"passes_missing": 2}),  # one twice, the other not at all
        ((*ALL, (3, 0)), {"passes_missing": 1}),  # a pass that was not to be traced
        ((*ALL, (4, 1)), {"layer_unknown": 1}),  # a layer that was not
        ((*ALL[:3], (4, 99)), {"passes_missing": 1, "layer_unknown": 1}),
    ],
)
def test_a_layer_too_few_or_too_many_is_noticed(places: Any, caught: dict[str, int]) -> None:
    assert violations(*traced_in(*places), **DUE) == caught


@pytest.mark.parametrize(
    "wrong",
    [
        {"phase": "prefill"},
        {"phase": "mixed"},
        {"phases": ["prefill", "decode"]},
        {"context_tokens": [62, 20]},
        {"scheduled_tokens": [2, 1]},
        {"requests": ["100", "102"]},
    ],
)
def test_phase_and_lengths_are_those_that_were_scheduled(wrong: Found) -> None:
    (result,) = grown(1, layers=1)
    batch = pd.DataFrame(
        {
            **{"repeat": 0, "step": 1, "request_id": result["requests"]},
            **{"phase": result["phases"], "context_tokens": result["context_tokens"]},
            "scheduled_tokens": result["scheduled_tokens"],
        }
    )
    assert violations(result, schedule=Schedule(batch)) == {}
    assert violations(result | wrong, schedule=Schedule(batch))["batch_differs"] == 1


# --- what needs more than one flush


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize(("factor", "caught"), [(1, False), (6.7, True), (210, True)])
def test_durations_in_another_unit_than_starts_are_caught(
    gpu: bool, factor: float, caught: bool
) -> None:
    judge = Judge(RunFacts(CLOCK))
    for step in range(4):
        flush = Batch([(600, 1)], step=step, seed=step, gpu=gpu).flush()
        judge.add(flush_of(change(lambda r: True, duration_ticks=lambda d: int(d / factor))(flush)))
    verdict = judge.account()
    assert verdict["clock_factor_wrong"]["looked"] == 1
    assert {name for name in NAMES if verdict[name]["violations"]} == (
        {"clock_factor_wrong"} if caught else set()
    )


def delayed(found: Found, share: float) -> Found:
    """The flush of a loaded machine: before that share of events, each worker waits for long."""

    def edit(rows: list[list[int]], _: Found) -> None:
        waited: dict[int, int] = {}
        for number, row in enumerate(rows):
            late = 5_000 * (number % 10 < 10 * share)
            waited[row[-1]] = waited.get(row[-1], 0) + late
            row[START] += waited[row[-1]]

    return edited(found, edit)


@pytest.mark.parametrize(("share", "caught"), [(0.8, False), (1.0, True)])
def test_events_that_wait_for_a_busy_machine_are_in_the_right_unit(
    share: float, caught: bool
) -> None:
    flushes = [Batch([(600, 1)], step=step, seed=step).flush() for step in range(4)]
    result = violations(*(delayed(flush, share) for flush in flushes))
    assert ("clock_factor_wrong" in result) == caught


def test_modeled_events_follow_one_another_and_fill_their_kernel() -> None:
    clock = replace(CLOCK, virtual=True)
    judge = Judge(RunFacts(clock))
    for step in range(4):
        flush = Batch([(600, 1)], step=step, seed=step, kv_heads=[0, 1]).flush()
        judge.add(flush_of(change(lambda r: True, duration_ticks=lambda d: d * 3 // 4)(flush)))
    wrong = {name for name, of in judge.account().items() if of["violations"]}
    assert wrong == {"clock_factor_wrong", "kernel_not_filled"}


def test_events_of_some_heads_need_not_fill_their_kernel() -> None:
    """Whatever the numbers of those: another head's may end last."""
    judge = Judge(RunFacts(replace(CLOCK, virtual=True), every_head=False))
    flush = Batch([(600, 1)], kv_heads=[0]).flush()
    judge.add(flush_of(change(lambda r: True, duration_ticks=lambda d: d * 3 // 4)(flush)))
    assert judge.account()["kernel_not_filled"]["looked"] == 0


def test_the_trace_has_the_heads_and_events_that_run_json_has() -> None:
    flush = MIXED.flush()
    events = sum(flush["segments"]["events"])
    assert violations(flush, heads=[1, 4], counted=(events, 0)) == {}
    assert violations(flush, heads=[1, 4, 7], counted=(events, 0)) == {"heads_missing": 1}
    assert violations(flush, counted=(events + 1, 0)) == {"counts_differ": 1}
    assert violations(flush, counted=(events, None)) == {"counts_differ": 1}


def test_too_few_gaps_say_nothing_about_the_unit() -> None:
    judge = Judge(RunFacts(CLOCK))
    flush = Batch([(64, 1)]).flush()
    judge.add(flush_of(change(lambda r: True, duration_ticks=lambda d: d // 20)(flush)))
    verdict = judge.account()["clock_factor_wrong"]
    assert (verdict["violations"], verdict["looked"]) == (0, 0)


@pytest.mark.parametrize(
    ("early", "late", "caught"),
    [(0, 0, False), (900, 900, False), (1100, 0, True), (0, 1100, True)],
)
def test_a_kernel_lies_within_its_layer_on_the_host_s_clock(
    early: int, late: int, caught: bool
) -> None:
    flush = Batch([(40, 1)], origin_ticks=500_000, step=3, layer=2).flush()
    start, end = flush["kernels"][0]["start_ticks"], flush["kernels"][-1]["end_ticks"]
    layers = LayerTimes({(0, 3, 2): (500_000 + start + early, 500_000 + end - late)})
    assert violations(flush, layers=layers) == ({"kernel_outside_layer": 1} if caught else {})


def test_a_gpu_s_kernel_may_run_after_its_layer_was_launched() -> None:
    flush = Batch([(40, 1)], gpu=True).flush()
    assert violations(flush, layers=LayerTimes({(0, 0, 0): (0, 1)})) == {}


def test_unknown_values_of_an_import_are_not_checked() -> None:
    result = Batch([(40, 1), (7, 1)], kv_heads=[0]).flush()
    result = edited(result, overlap_all) | {"kv_heads": None, "block_table": None}
    for kernel in result["kernels"]:
        kernel |= {"start_ticks": None, "end_ticks": None}
    result["segments"]["dropped"] = None
    assert violations(result) == {}
    only_reads = edited(result, lambda rows, _: rows.__setitem__(slice(None), of_reads(rows)))
    only_reads["kernels"][0]["kernel"] = "attention"
    assert violations(only_reads) == {}


def overlap_all(rows: list[list[int]], found: Found) -> None:
    for row in rows:
        row[HEAD], row[START] = -1, 0


def of_reads(rows: list[list[int]]) -> list[list[int]]:
    return [row for row in rows if row[0] <= V_READ]


def test_the_report_says_what_every_oracle_means() -> None:
    for name in NAMES:
        assert reason_in_words(name).startswith("violated: ")
