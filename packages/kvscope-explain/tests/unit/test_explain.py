"""`kvscope explain`: the life of a request adds up to its latency, and says what the tables say."""

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest

from kvscope.base.quantities import plural, short_duration
from kvscope.cli import main as cli
from kvscope.judge.records import Records, read_records
from kvscope.plan.policy import Whom
from kvscope_explain import causes as why
from kvscope_explain.explained import (
    CHOSEN,
    costliest,
    megabytes,
    ordinal,
    request_lines,
    run_facts,
    sentence,
)
from kvscope_explain.life import (
    COPIED,
    DECODED,
    KINDS,
    PAUSED,
    PREEMPTED,
    PREFILLED,
    QUEUED,
    RECOMPUTED,
    THRASHED,
    Lives,
    Stretch,
)
from kvscope_explain.waits import Wait
from tests.unit.report_fixture import Fake, write_experiment

CASES = {
    "recompute": Fake({"kind": "recompute"}, "recompute"),
    "swap": Fake({"kind": "swap"}, "swap, prefill first"),
    "small pool": Fake({"kind": "pool"}, "swap, a small pool"),
    "ample": Fake({"kind": "ample"}),
    "thrash": Fake({"kind": "thrash"}, "thrash"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    results = tmp_path_factory.mktemp("results")
    return {name: write_experiment(fake, results) for name, fake in CASES.items()}


def lives_of(repeat: Records) -> Lives:
    return Lives(repeat, repeat.whole.settings)


@pytest.fixture(params=CASES)
def repeat(request: pytest.FixtureRequest, runs: dict[str, Path]) -> Records:
    return read_records(runs[request.param]).of_repeat(1)


def test_the_stretches_of_a_request_are_its_whole_life(repeat: Records) -> None:
    lives = lives_of(repeat)
    for request_id, latency_s in lives.latencies_s.items():
        stretches, row = lives.of(request_id), lives.row(request_id)
        assert stretches[0].start_s == pytest.approx(row["arrival_s"], abs=1e-8)
        assert stretches[-1].end_s == pytest.approx(row["finished_s"], abs=1e-8)
        for one, other in pairwise(stretches):
            assert other.start_s == pytest.approx(one.end_s, abs=1e-8)
        assert sum(stretch.duration_s for stretch in stretches) == pytest.approx(
            latency_s, abs=1e-7
        )
        assert {stretch.kind for stretch in stretches} <= {*KINDS}


def test_every_second_of_a_stretch_has_one_cause(repeat: Records) -> None:
    lives = lives_of(repeat)
    for stretch in lives.all:
        assert {*stretch.causes} <= {*why.MEANINGS} - {why.UNKNOWN}
        assert sum(stretch.causes.values()) == pytest.approx(stretch.duration_s, abs=1e-12)
    facts = run_facts(lives)
    assert sum(facts["causes"].values()) == pytest.approx(facts["latency_s"])


def test_each_preemption_is_a_stretch_as_long_as_its_wait(repeat: Records) -> None:
    lives, rows = lives_of(repeat), repeat.preemptions
    for request_id in lives.latencies_s:
        stretches = lives.of(request_id)
        waits = [stretch for stretch in stretches if stretch.kind == PREEMPTED]
        own = rows[rows["request_id"] == request_id].sort_values("time_s")
        lost, back = own[own["event"] == "preempt"], own[own["event"] == "resume"]
        folded = sum(one.facts["preemptions"] for one in stretches if one.kind == THRASHED)
        assert len(waits) + folded == len(lost)
        if folded:
            continue
        assert [wait.facts["tokens"] for wait in waits] == lost["tokens"].tolist()
        assert [wait.facts["action"] for wait in waits] == lost["policy"].tolist()
        assert [wait.facts["refused"] for wait in waits] == lost["refused"].tolist()
        assert [wait.duration_s for wait in waits] == pytest.approx(
            back["wait_s"].tolist(), abs=1e-8
        )


def test_tokens_that_are_computed_again_are_apart_from_new_ones(repeat: Records) -> None:
    lives, batch = lives_of(repeat), repeat.batch
    again, scheduled = batch["recomputed_tokens"].sum(), batch["scheduled_tokens"].sum()
    of_kind = {
        kind: sum(one.facts.get("tokens", 0) for one in lives.all if one.kind == kind)
        for kind in (RECOMPUTED, PREFILLED, DECODED, THRASHED)
    }
    new = sum(one.facts["new_tokens"] for one in lives.all if one.kind == THRASHED)
    assert of_kind[RECOMPUTED] + of_kind[THRASHED] == again
    assert of_kind[PREFILLED] + of_kind[DECODED] + new == scheduled - again


def test_bytes_are_those_that_were_copied_back(runs: dict[str, Path]) -> None:
    repeat = read_records(runs["swap"]).of_repeat(0)
    moved = sum(s.facts["bytes"] for s in lives_of(repeat).all if s.kind == COPIED)
    assert moved == repeat.copied_back["bytes"].sum() > 0


def test_only_a_full_cache_makes_requests_wait_for_room(runs: dict[str, Path]) -> None:
    def no_room_s(name: str) -> float:
        facts = run_facts(lives_of(read_records(runs[name]).of_repeat(0)))
        return float(facts["causes"].get(why.NO_ROOM, 0.0))

    assert no_room_s("ample") == 0
    assert no_room_s("recompute") > 0


def test_the_tables_say_the_same_of_waits_as_the_replay(repeat: Records) -> None:
    whole = repeat.whole
    started = whole.variant(facts=whole.facts | {"evidence": []}).of_repeat(1)
    of_replay, of_tables = lives_of(repeat), lives_of(started)
    for one, other in zip(of_replay.all, of_tables.all, strict=True):
        assert one.causes == pytest.approx(other.causes)
        waits = [stretch.facts.get("waits", ()) for stretch in (one, other)]
        behind = [[wait.behind for wait in each] for each in waits]
        assert behind[0] == behind[1]
    causes = {*run_facts(of_replay)["causes"]}
    assert why.UNKNOWN not in causes
    assert why.NOT_ADMITTED not in causes or why.PAUSED in causes  # with prefill first


def test_a_prompt_that_is_preempted_again_and_again_is_one_line(runs: dict[str, Path]) -> None:
    lives = lives_of(read_records(runs["thrash"]).of_repeat(0))
    thrashes = [stretch for stretch in lives.all if stretch.kind == THRASHED]
    assert thrashes
    (loss,) = [one for one in costliest(lives.all) if one.request_id == thrashes[0].request_id][:1]
    assert loss.preemptions > 2
    assert "in its prefill" in loss.sentence
    assert "scheduler_reserve_full_isl=true" in loss.sentence


def test_a_request_that_waits_for_a_victims_room_got_blocks_in_that_pass(repeat: Records) -> None:
    lives, batch, size = lives_of(repeat), repeat.batch, repeat.block_size
    for wait in (s for s in lives.all if s.kind == PREEMPTED):
        assert wait.steps is not None
        rows = batch[batch["step"] == wait.steps[0]].set_index("request_id")
        assert wait.request_id not in wait.facts["for_requests"]
        for other in wait.facts["for_requests"]:
            before, more = rows.loc[other, "context_tokens"], rows.loc[other, "scheduled_tokens"]
            assert before == 0 or -(-(before + more) // size) > -(-before // size)


def test_requests_pause_only_where_prefill_comes_first(runs: dict[str, Path]) -> None:
    kinds = {
        name: {s.kind for s in lives_of(read_records(run).of_repeat(0)).all}
        for name, run in runs.items()
    }
    assert PAUSED in kinds["swap"]
    assert PAUSED not in kinds["recompute"]


def test_the_preemptions_of_a_request_are_one_loss_and_each_wait_another(repeat: Records) -> None:
    lives = lives_of(repeat)
    result = run_facts(lives)
    preempted_s: dict[str, float] = defaultdict(float)
    for stretch in lives.all:
        if stretch.kind not in (PREFILLED, DECODED, QUEUED, PAUSED):
            preempted_s[stretch.request_id] += stretch.duration_s
    waits_s = [one.duration_s for one in lives.all if one.kind in (QUEUED, PAUSED)]
    expected = {"costliest_preemptions": preempted_s.values(), "longest_waits": waits_s}
    for name, seconds in expected.items():
        losses = result[name]
        assert [one["duration_s"] for one in losses] == pytest.approx(
            sorted(seconds, reverse=True)[:5]
        )
        for loss in losses:
            assert sum(loss["causes"].values()) == pytest.approx(loss["duration_s"])


def test_the_command_prints_lines_or_json(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(runs["recompute"])
    assert cli.main(["explain", run]) == 0
    assert "The costliest preemptions" in capsys.readouterr().out
    assert cli.main(["explain", run, "--json"]) == 0
    slowest = json.loads(capsys.readouterr().out)["slowest"][0]
    assert cli.main(["explain", run, slowest, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["request_id"] == slowest
    assert cli.main(["explain", run, slowest]) == 0
    text = capsys.readouterr().out
    assert all(stretch["sentence"] in text for stretch in facts["stretches"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["99"], "no request '99'"),
        (["--repeat", "7"], "no repeat 7; its repeats are 0, 1, 2"),
    ],
)
def test_what_is_not_there_is_refused_in_a_sentence(
    words: list[str], told: str, runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", str(runs["ample"]), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


LACKS = Wait(why.NO_ROOM, 0.25, passes=3, needed=9, free=8)


def told(kind: str, /, **facts: Any) -> str:
    return sentence(Stretch("7", kind, 0.0, 1.0, None, facts))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            told(QUEUED, ahead=0, same_instant=0, waits=[Wait(why.NEXT_PASS, 0.012)]),
            "queued as the first: 12 ms until the next pass",
        ),
        (
            told(QUEUED, ahead=1, same_instant=1, waits=[LACKS, Wait(why.NEXT_PASS, 0.001)]),
            "queued behind 1 request (it came at the same instant): 250 ms as it had no room: "
            "9 blocks needed, up to 8 free, 1 ms for other reasons",
        ),
        (
            told(QUEUED, ahead=3, same_instant=2, waits=[replace(LACKS, behind=("2", "1"))]),
            "queued behind 3 requests (2 of them came at the same instant): 250 ms behind requests "
            "2, 1, which had no room: 9 blocks needed, up to 8 free",
        ),
        (
            told(
                QUEUED, ahead=9, same_instant=0, waits=[replace(LACKS, behind=tuple("123456789"))]
            ),
            "queued behind 9 requests: 250 ms behind 9 other requests, which had no room: 9 blocks "
            "needed, up to 8 free",
        ),
        (
            told(QUEUED, ahead=0, same_instant=0, waits=[Wait(why.FULL_BATCH, 0.5, running=64)]),
            "queued as the first: 500 ms while 64 requests ran, which is max_num_seqs",
        ),
        (
            told(
                QUEUED,
                ahead=0,
                same_instant=0,
                waits=[Wait(why.FULL_PASS, 0.5, tokens=2048, again=0.25)],
            ),
            "queued as the first: 500 ms while passes of up to 2,048 tokens had too few left (25% "
            "of them computed again)",
        ),
        (
            told(
                QUEUED, ahead=0, same_instant=0, waits=[Wait(why.NEVER, 0.5, needed=2176, passes=1)]
            ),
            "queued as the first: 500 ms as it can never run: 2,176 blocks needed, more than the "
            "cache has",
        ),
        (
            told(PREFILLED, tokens=20, passes=2, hit=96, own_hit=0),
            "prefill of 20 tokens in 2 passes, 96 tokens found in the prefix cache",
        ),
        (
            told(RECOMPUTED, tokens=5, passes=1, hit=96, own_hit=32, loaded=64),
            "computes 5 tokens again in 1 pass, 96 tokens found in the prefix cache, 32 of them "
            "its own, 64 tokens loaded from the host",
        ),
        (
            told(DECODED, sampled=1, passes=1, beside=1, hit=16, own_hit=16),
            "decode of 1 token in 1 pass, with up to 1 other, 16 tokens found in the prefix cache, "
            "all of them its own",
        ),
        (told(PAUSED), "paused: no pass computed it"),
        (told(PAUSED, passes=1, prefill_tokens=0), "paused for 1 pass of others"),
        (
            told(PAUSED, passes=3, prefill_tokens=40),
            "paused for 3 passes of others, which prefilled 40 tokens",
        ),
        (told(COPIED, bytes=1_234_567_890, kind="kv"), "1,235 MB copied back"),
        (
            told(COPIED, bytes=4_194_304, kind="activations"),
            "4.19 MB of activations copied back, K and V rebuilt",
        ),
    ],
)
def test_sentences_have_the_facts_and_no_others(said: str, expected: str) -> None:
    assert said == expected


LOST = {
    "action": "recompute",
    "refused": False,
    "tokens": 33,
    "blocks": 3,
    "shared_blocks": 0,
    "in_prefill": False,
    "for_requests": ["2"],
    "waits": [Wait(why.NO_ROOM, 0.25)],
}


def test_a_preemption_names_its_rule_and_the_request_that_needed_room() -> None:
    assert {*CHOSEN} == {*get_args(Whom), None}
    for rule, words in CHOSEN.items():
        assert told(PREEMPTED, **LOST, victim=rule) == (
            f"preempted {words} to make room for request 2: 3 blocks of 33 tokens lost; waits to "
            "resume: 250 ms until the next pass"
        )
    refused = LOST | {"refused": True, "for_requests": []}
    assert told(PREEMPTED, **refused, victim="last") == (
        "preempted as the last that was admitted for want of a block of its own: 3 blocks of 33 "
        "tokens lost, since the host pool was full; waits to resume: 250 ms until the next pass"
    )


def test_blocks_that_others_hold_are_not_lost() -> None:
    assert "1 block of 33 tokens lost (others hold 2 more)" in told(
        PREEMPTED, **LOST | {"shared_blocks": 2}, victim="last"
    )


def test_the_preemptions_of_a_request_are_one_sentence_with_their_sum() -> None:
    def thrash(**facts: Any) -> Stretch:
        known = {"preemptions": 71, "in_prefill": True, "tokens": 600_000, "most_tokens": 10_220}
        spent = {why.PREEMPTING: 0.9, why.RECOMPUTE: 15.6}
        return Stretch("4", THRASHED, 0.0, 16.5, None, known | facts, spent)

    last = Stretch("4", RECOMPUTED, 16.5, 16.7, None, {"tokens": 20_000}, {why.RECOMPUTE: 0.2})
    (loss,) = costliest([thrash(reserves_all=False), last])
    assert loss.duration_s == pytest.approx(16.7)
    assert loss.sentence == (
        "preempted 71 times, each time in its prefill; computes 620,000 tokens again in 15.800 s; "
        "waits: 900 ms pass preempts; scheduler_reserve_full_isl=true admits a prompt only if all "
        "of it has room"
    )
    assert "scheduler_reserve_full_isl" not in sentence(thrash(reserves_all=True))


def test_numbers_have_few_digits_and_their_unit() -> None:
    assert [plural(1, "pass"), plural(1200, "pass")] == ["1 pass", "1,200 passes"]
    assert [*map(ordinal, (1, 2, 3, 4, 11, 21, 112))] == [
        *("1st", "2nd", "3rd", "4th", "11th", "21st", "112th"),
    ]
    assert [*map(short_duration, (5e-6, 0.012, 0.9999, 1234.5))] == [
        *("5 µs", "12 ms", "1.000 s", "1,234.500 s"),
    ]
    assert [*map(megabytes, (500_000, 999_600_000))] == ["0.5 MB", "1,000 MB"]


def test_a_request_has_its_place_among_the_slowest(runs: dict[str, Path]) -> None:
    lives = lives_of(read_records(runs["recompute"]).of_repeat(0))
    first, second = [*lives.latencies_s][:2]
    assert f"the slowest of {len(lives.latencies_s)}" in request_lines(lives, first)[0]
    assert "the 2nd slowest of" in request_lines(lives, second)[0]


def test_vllms_own_rule_is_named_only_where_the_passes_agree(runs: dict[str, Path]) -> None:
    run = read_records(runs["recompute"])
    waits = [stretch for stretch in lives_of(run.of_repeat(0)).all if stretch.kind == PREEMPTED]
    assert {stretch.facts["victim"] for stretch in waits} == {"last"}
    wait = waits[0]
    assert wait.steps is not None
    # A request that runs on was admitted after the victim: it is not the last.
    batch, step = run.batch, wait.steps[0]
    ran = batch[(batch["repeat"] == 0) & (batch["step"] == step)]["request_id"].iloc[0]
    own = batch[(batch["repeat"] == 0) & (batch["request_id"] == ran)]
    early = own.index[own["step"] < step - 1]
    later = run.variant(batch=batch.drop(early)).of_repeat(0)
    (same,) = (
        stretch
        for stretch in lives_of(later).of(wait.request_id)
        if stretch.kind == PREEMPTED and stretch.steps == wait.steps
    )
    assert same.facts["victim"] is None
