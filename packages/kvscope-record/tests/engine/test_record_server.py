"""A real `vllm serve`, recorded: its own metrics, what its clients got, a kill of its engine."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")
pytest.importorskip("uvicorn", reason="vLLM's server is not here; run `make env`")

from http_server import HttpServer, make_model, serving
from served import ABORTED, REQUESTS, lengths

from kvscope.metrics.experiment import analyse
from kvscope.report.check_run import check_run
from kvscope_record import lock
from kvscope_record.segments import segment_paths
from tests.engine.conftest import kvscope

pytestmark = [pytest.mark.engine, pytest.mark.thorough]

BENCH = [
    *("--dataset-name", "random", "--num-prompts", "10", "--temperature", "0", "--ignore-eos"),
    *("--random-input-len", "60", "--random-output-len", "30", "--random-prefix-len", "40"),
]
UNCLOSED = "session 1 was not closed: its server was killed or crashed, or the disk was full"
SERVED_S = 3.0  # before the kill


@dataclass(frozen=True)
class Outcome:
    """Results of two servers, one of them recorded."""

    directory: Path  # the recording, when nobody had been killed
    killed: Path  # the recording after the kill
    plain_words: list[list[str]]
    words: list[list[str]]
    bench: dict[str, Any]
    counts: dict[str, float]
    second: subprocess.CompletedProcess[str]  # that was to record into the same directory
    ended_s: list[float]  # when requests after these ended, before the kill at 0

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_parquet(self.directory / f"{name}.parquet")

    @staticmethod
    def is_left(requests: pd.DataFrame) -> "pd.Series[bool]":
        """Whether the client of a request went early: no other prompt is as long."""
        return requests["prompt_tokens"] == len(lengths(ABORTED)[0])


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    place: Path = tmp_path_factory.mktemp("served")
    make_model(place / "model")
    with serving(place) as server:
        plain_words = server.serve()
    recording, whole = place / "recording", place / "whole"
    recorder = [sys.executable, "-m", "kvscope.cli", "record", "--out", str(recording), "--"]
    with serving(place, *recorder) as server:
        words, bench = server.serve(), server.bench(*BENCH)
        counts = server.counts()
        time.sleep(1)  # what a recording may lack
        shutil.copytree(recording, whole)
        second = kvscope("record", "--out", str(recording), "--", sys.executable, "-c", "1")
        ended_s = kill_engine(server, recording)
        server.process.wait(120)
    made = kvscope("collect", str(whole))
    # The copy of a recording that goes on is like that of a server that was killed.
    assert (made.returncode, made.stderr) == (0, f"kvscope: {UNCLOSED}\n")
    made = kvscope("collect", str(recording))  # may say that the last request had not ended
    assert made.returncode == 0, made.stderr
    return Outcome(whole, recording, plain_words, words, bench, counts, second, ended_s)


def kill_engine(server: HttpServer, recording: Path) -> list[float]:
    """Kill the process that records while it serves; when requests ended, in s from the kill."""
    ended = []
    began = time.monotonic()
    while time.monotonic() - began < SERVED_S:
        server.complete([7, 8, 9], 20)
        ended.append(time.monotonic())
    os.kill(int((recording / lock.LOCK_FILE).read_text()), signal.SIGKILL)
    killed = time.monotonic()
    return [at - killed for at in ended]


def test_the_counts_are_those_of_vllm_s_metrics(outcome: Outcome):
    requests, batch = outcome.table("requests"), outcome.table("batch")
    preemptions = outcome.table("preemptions")
    resumed = preemptions.loc[preemptions["event"] == "resume", "hit_tokens"].sum()
    counts = dict(outcome.counts)
    assert counts["vllm:num_preemptions"] > 0, "the cache was not scarce"
    ((left, tokens),) = requests.loc[
        outcome.is_left(requests), ["request_id", "output_tokens"]
    ].to_numpy()
    # vLLM's front end counts until the client has gone; its engine goes on for a few passes.
    of_left = counts.pop("vllm:generation_tokens") - (requests["output_tokens"].sum() - tokens)
    assert len(outcome.words[ABORTED]) <= of_left <= tokens
    preempted = preemptions.loc[preemptions["event"] == "preempt", "request_id"]
    of_others = (preempted != left).sum()
    assert of_others <= counts.pop("vllm:num_preemptions") <= len(preempted)
    assert counts == {
        "vllm:prefix_cache_queries": requests["prompt_tokens"].sum(),
        "vllm:prefix_cache_hits": batch["hit_tokens"].sum() - resumed,
        "vllm:prompt_tokens": requests["prompt_tokens"].sum(),
    }


def test_the_requests_are_those_of_the_clients(outcome: Outcome):
    requests = outcome.table("requests")
    left = outcome.is_left(requests)
    done = requests[~left]
    sent = [lengths(number) for number in range(REQUESTS) if number != ABORTED]
    lengths_of_bench = zip(outcome.bench["input_lens"], outcome.bench["output_lens"], strict=True)
    assert outcome.bench["completed"] == outcome.bench["num_prompts"]
    assert Counter(zip(done["prompt_tokens"], done["output_tokens"], strict=True)) == Counter(
        [*((len(prompt), tokens) for prompt, tokens in sent), *lengths_of_bench]
    )
    assert not done["aborted"].any()
    # On a busy machine the engine may have ended the request before it hears that its client left.
    ((aborted, tokens),) = requests.loc[left, ["aborted", "output_tokens"]].to_numpy()
    assert aborted == (tokens < lengths(ABORTED)[1])


def test_the_words_are_those_of_a_server_that_is_not_recorded(outcome: Outcome):
    for number, (plain, recorded) in enumerate(
        zip(outcome.plain_words, outcome.words, strict=True)
    ):
        most = min(len(plain), len(recorded)) if number == ABORTED else lengths(number)[1]
        assert recorded[:most] == plain[:most], number
        assert len(recorded) >= most


def test_every_oracle_that_applies_holds(outcome: Outcome):
    metrics = analyse(outcome.directory, outcome.directory)
    assert set(metrics["reasons"]) == {""}
    assert check_run(outcome.directory) == []


def test_a_second_server_is_refused_while_the_first_lives(outcome: Outcome):
    assert outcome.second.returncode != 0
    (sentence,) = outcome.second.stderr.splitlines()
    assert "records there; give each server a directory of its own" in sentence


def test_a_kill_of_the_engine_loses_a_second_at_most(outcome: Outcome):
    before = outcome.table("requests")
    after = pd.read_parquet(outcome.killed / "requests.parquet")
    expected = len(before) + sum(at < -1 for at in outcome.ended_s)
    assert expected > len(before), "nothing was served before the last second"
    assert (~after["aborted"]).sum() + before["aborted"].sum() >= expected
    assert lock.problem(outcome.killed) is None
    assert segment_paths(outcome.killed)
