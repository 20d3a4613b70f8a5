"""`kvscope explain`: the life of a request adds up to its latency, and says what the tables say."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from kvscope import cli
from kvscope.analyse.explained import run_facts
from kvscope.analyse.life import (
    COPIED,
    DECODED,
    KINDS,
    PAUSED,
    PREEMPTED,
    PREFILLED,
    QUEUED,
    RECOMPUTED,
    Lives,
)
from kvscope.analyse.records import Records, read_records

from .report_fixture import Fake, write_experiment

CASES = {
    "recompute": Fake({"kind": "recompute"}, blocks=16),
    "swap": Fake({"kind": "swap"}, blocks=16, overflow="swap", batching="prefill_first"),
    "small pool": Fake({"kind": "pool"}, blocks=16, overflow="swap", host_blocks=5),
    "ample": Fake({"kind": "ample"}, blocks=400),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    results = tmp_path_factory.mktemp("results")
    return {name: write_experiment(fake, results) for name, fake in CASES.items()}


@pytest.fixture(params=CASES)
def repeat(request: pytest.FixtureRequest, runs: dict[str, Path]) -> Records:
    return read_records(runs[request.param]).of_repeat(1)


def test_the_stretches_of_a_request_are_its_whole_life(repeat: Records) -> None:
    lives = Lives(repeat)
    for request_id, latency_s in lives.latencies_s.items():
        stretches, row = lives.of(request_id), lives.row(request_id)
        assert stretches[0].start_s == pytest.approx(row["arrival_s"], abs=1e-8)
        assert stretches[-1].end_s == pytest.approx(row["finished_s"], abs=1e-8)
        for one, other in pairwise(stretches):
            assert other.start_s == pytest.approx(one.end_s, abs=1e-8)
        assert sum(one.duration_s for one in stretches) == pytest.approx(latency_s, abs=1e-7)
        assert {one.kind for one in stretches} <= {*KINDS}


def test_each_preemption_is_a_stretch_as_long_as_its_wait(repeat: Records) -> None:
    lives, rows = Lives(repeat), repeat.preemptions
    for request_id in lives.latencies_s:
        waits = [one for one in lives.of(request_id) if one.kind == PREEMPTED]
        own = rows[rows["request_id"] == request_id].sort_values("time_s")
        lost, back = own[own["event"] == "preempt"], own[own["event"] == "resume"]
        assert [one.facts["tokens"] for one in waits] == lost["tokens"].tolist()
        assert [one.facts["action"] for one in waits] == lost["policy"].tolist()
        assert [one.facts["refused"] for one in waits] == lost["refused"].tolist()
        assert [one.duration_s for one in waits] == pytest.approx(back["wait_s"].tolist(), abs=1e-8)


def test_tokens_are_those_that_the_batch_computed(repeat: Records) -> None:
    lives, batch = Lives(repeat), repeat.batch
    again = batch["recomputed_tokens"] > 0
    of = {
        RECOMPUTED: again,
        PREFILLED: ~again & (batch["phase"] == "prefill"),
        DECODED: ~again & (batch["phase"] == "decode"),
    }
    for kind, rows in of.items():
        tokens = sum(s.facts["tokens"] for s in lives.all if s.kind == kind)
        assert tokens == batch["scheduled_tokens"][rows].sum()


def test_bytes_are_those_that_were_copied_back(runs: dict[str, Path]) -> None:
    repeat = read_records(runs["swap"]).of_repeat(0)
    moved = sum(s.facts["bytes"] for s in Lives(repeat).all if s.kind == COPIED)
    assert moved == repeat.copied_back["bytes"].sum() > 0


def test_only_a_full_cache_makes_requests_wait_for_room(runs: dict[str, Path]) -> None:
    def no_room_s(name: str) -> float:
        lives = Lives(read_records(runs[name]).of_repeat(0))
        return sum(s.facts["no_room_s"] for s in lives.all if s.kind == QUEUED)

    assert no_room_s("ample") == 0
    assert no_room_s("recompute") > 0


def test_who_waits_for_a_victims_room_got_blocks_in_that_pass(repeat: Records) -> None:
    lives, batch, size = Lives(repeat), repeat.batch, repeat.block_size
    for wait in (s for s in lives.all if s.kind == PREEMPTED):
        assert wait.steps is not None
        rows = batch[batch["step"] == wait.steps[0]].set_index("request_id")
        assert wait.request_id not in wait.facts["for_requests"]
        for other in wait.facts["for_requests"]:
            before, more = rows.loc[other, "context_tokens"], rows.loc[other, "scheduled_tokens"]
            assert before == 0 or -(-(before + more) // size) > -(-before // size)


def test_requests_pause_only_where_prefill_comes_first(runs: dict[str, Path]) -> None:
    kinds = {
        name: {s.kind for s in Lives(read_records(run).of_repeat(0)).all}
        for name, run in runs.items()
    }
    assert PAUSED in kinds["swap"]
    assert PAUSED not in kinds["recompute"]


def test_the_costliest_are_the_longest_of_what_a_request_alone_would_not_have(
    repeat: Records,
) -> None:
    lives = Lives(repeat)
    found = run_facts(lives)
    lost = sorted(
        (s.duration_s for s in lives.all if s.kind not in (PREFILLED, DECODED)), reverse=True
    )
    assert [one["duration_s"] for one in found["costliest"]] == lost[:10]
    assert found["latency_s"] == pytest.approx(sum(found["seconds"].values()))


def test_the_command_prints_lines_or_json(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(runs["recompute"])
    assert cli.main(["explain", run]) == 0
    assert "costliest" in capsys.readouterr().out
    assert cli.main(["explain", run, "--json"]) == 0
    slowest = json.loads(capsys.readouterr().out)["slowest"][0]
    assert cli.main(["explain", run, slowest, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["request_id"] == slowest
    assert cli.main(["explain", run, slowest]) == 0
    text = capsys.readouterr().out
    assert all(one["sentence"] in text for one in facts["stretches"])


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
