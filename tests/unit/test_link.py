"""Messages between a campaign and its engines: whole, and never waited for by who is measured."""

import pytest

from kvscope.run import progress
from kvscope.run.block import Told
from kvscope.run.engines import ParkedEngine
from kvscope.run.link import Link, Lost
from kvscope.run.progress import Progress


def test_an_offer_is_dropped_where_nobody_reads_and_the_rest_is_whole() -> None:
    ours, theirs = Link.pair()
    offered = 100_000
    for number in range(offered):
        theirs.offer(phase="repeat 1", share=number)
    received = 0
    try:
        while True:
            assert ours.receive(0.01)[0] == {"phase": "repeat 1", "share": received}
            received += 1
    except Lost:
        pass
    assert 0 < received < offered


def test_an_offer_to_a_closed_link_is_lost() -> None:
    ours, theirs = Link.pair()
    ours.close()
    with pytest.raises(Lost):
        theirs.offer(share=0)


def test_progress_comes_before_the_answer(tmp_path) -> None:
    ours, theirs = Link.pair()
    told: list[tuple[str, float]] = []
    theirs.send(phase="repeat 1", share=0.25)
    theirs.send(phase="repeat 1", share=0.5)
    theirs.send(served=3)
    engine = ParkedEngine(tmp_path, ours, None)
    assert engine.serve({}, lambda *words: told.append(words)) == 3
    assert told == [("repeat 1", 0.25), ("repeat 1", 0.5)]


def test_an_engine_that_ends_says_why_it_could_not_write(tmp_path) -> None:
    ours, theirs = Link.pair()
    theirs.send(ended="steps.parquet: cannot be written (No space left on device)")
    with pytest.raises(Lost) as lost:
        ParkedEngine(tmp_path, ours, None).await_ready()
    assert lost.value.reason == "steps.parquet: cannot be written (No space left on device)"


def test_progress_is_the_share_of_its_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_WORDS", -1.0)
    told: list[tuple[str, float]] = []
    counted = Progress(lambda *words: told.append(words))
    counted.begin("starting the engine")
    for phase in ("warm-up 1/1", "repeat 1"):
        counted.begin(phase, 4)
        counted.advance(1)
        counted.advance(3)
    assert told == [
        ("starting the engine", 0.0),
        *(("warm-up 1/1", share) for share in (0.0, 0.25, 1.0)),
        *(("repeat 1", share) for share in (0.0, 0.25, 1.0)),
    ]


def test_a_campaign_shows_the_stage_that_it_is_in_else_the_phase() -> None:
    shown: list[str] = []
    told = Told(shown.append)
    told("starting the engine", 0.0)
    told.stage("round 1 of 3")
    told("repeat 1", 0.5)
    assert shown == ["starting the engine", "round 1 of 3", "round 1 of 3: 50 %"]
