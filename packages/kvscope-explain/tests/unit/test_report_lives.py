"""The page explains slow requests as `kvscope explain` does, and stays small."""

from pathlib import Path

import pytest

from kvscope.base.quantities import short_duration
from kvscope.judge.records import read_records
from kvscope.report.load import load
from kvscope_explain import lives as of_page
from kvscope_explain.explained import request_facts, run_facts
from kvscope_explain.life import Lives
from kvscope_explain.lives import lives_of
from kvscope_explain.misses import accounts_of
from kvscope_explain.token_section import tokens_of
from kvscope_explain.token_words import lines
from tests.unit.report_fixture import Fake, write_study

FAKES = [
    Fake({"cache.blocks": 16, "overflow": "recompute"}, "recompute"),
    Fake({"cache.blocks": 16, "overflow": "swap"}, "swap"),
    Fake({"cache.blocks": 4}, status=None),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("results"), FAKES)


def test_the_page_says_what_explain_says(results: Path) -> None:
    study = load(["fake"], results)
    found = lives_of(study)
    assert [run["id"] for run in found["runs"]] == [run.id for run in study.complete]
    for shown, run in zip(found["runs"], study.complete, strict=True):
        lives = Lives(read_records(run.directory).of_repeat(0), run.settings)
        facts = run_facts(lives)
        losses = [*facts["costliest_preemptions"], *facts["longest_waits"]]
        listed = [loss for _, each in shown["losses"] for loss in each]
        assert [[one["request_id"], one["sentence"]] for one in losses] == [
            [name, sentence] for name, _, sentence in listed
        ]
        ids = [one["id"] for one in shown["requests"]]
        assert {*facts["slowest"], *(one["request_id"] for one in losses)} == {*ids}
        assert ids == [name for name in lives.latencies_s if name in ids]
        for request in shown["requests"]:
            told = request_facts(lives, request["id"])
            assert request["took"] == short_duration(told["latency_s"])
            assert request["preemptions"] == told["preemptions"]
            assert [line[3] for line in request["lines"]] == [
                one["sentence"] for one in told["stretches"]
            ]
            assert sum(share for _, share, _ in request["parts"]) == pytest.approx(1, abs=1e-3)


def test_a_long_life_is_shown_by_its_longest_stretches(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_page, "MOST_LINES", 2)
    study = load(["fake"], results)
    long = [one for one in lives_of(study)["runs"][0]["requests"] if len(one["lines"]) > 2]
    assert long
    for request in long:
        *lines, rest = request["lines"]
        assert len(lines) == 2
        assert rest[3].startswith("in ")
        assert "shorter stretch" in rest[3]


def test_of_many_experiments_the_first_are_explained(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_page, "MOST_RUNS", 1)
    found = lives_of(load(["fake"], results))
    assert (len(found["runs"]), found["left_out"]) == (1, 1)


def test_the_page_accounts_for_tokens_as_explain_does(results: Path) -> None:
    study = load(["fake"], results)
    lives = lives_of(study)
    made = tokens_of(study, lives)
    assert [run["id"] for run in made] == [run["id"] for run in lives["runs"]]
    for shown, run in zip(made, study.complete, strict=True):
        accounts = accounts_of(read_records(run.directory).of_repeat(0))
        assert accounts is not None
        requests = [(one["id"], one) for one in shown["requests"]]
        for name, account in [(None, shown), *requests]:
            rows = [f"{share:>8}  {count:>11}  {line}" for share, count, line in account["rows"]]
            own = shown["remedies"] if name is None else []
            assert [account["heading"], *rows, *own] == [*lines(accounts, name)]
