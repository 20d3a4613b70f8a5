"""Campaigns of real engines: rounds, deaths of engines and zygotes, and a campaign that goes on."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import psutil
import pytest

from kvscope.base.files import make_directory, read_json, write_text
from kvscope.engine.devices.cpu import CpuPlatform
from kvscope.plan.experiment import Experiment, dump
from kvscope.plan.grid import expand
from kvscope.run.engines import Zygote
from kvscope.run.environment import measured_environment
from kvscope.run.noise import LEAST_ROUNDS, describe, measure_noise
from kvscope.run.rounds import Group, Member, hold_locks
from kvscope.tables.runfile import EXPERIMENT_FILE, SESSION_FILE
from tests.warm import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

COMMON = (
    *("workload=fixed", "workload.num_requests=6", "workload.prompt_tokens=32"),
    *("workload.output_tokens=48", "engine.max_model_len=96", "engine.max_num_batched_tokens=96"),
    *("tracing=none", "profiler=none"),
)
ID = "0123456789ab"
COUNTS = ("requests", "prefill_tokens", "recomputed_tokens", "preempted_requests", "kv_blocks_used")


def planned(*overrides: str) -> Experiment:
    return expand(None, [*COMMON, *overrides], ROOT / "config").experiments[0].experiment


def members(place: Path) -> dict[str, Member]:
    """An experiment with an ample cache, and one that overflows."""
    result = {}
    for name, blocks in (("ample", 64), ("scarce", 8)):
        experiment = planned(f"cache.blocks={blocks}", "cache.block_size=32")
        directory = place / name
        make_directory(directory)
        write_text(directory / EXPERIMENT_FILE, dump(experiment))
        result[name] = Member(experiment, directory)
    return result


@contextmanager
def group(place: Path) -> Iterator[tuple[Group, Zygote]]:
    """The engines of both, and the process that forks them."""
    result = members(place)
    environment = measured_environment(result["ample"].experiment)
    with (
        hold_locks(result.values()),
        Zygote(environment, CpuPlatform.worker_modules, place / "zygote.log") as zygote,
        Group(result, zygote, ID) as running,
    ):
        yield running, zygote


def session(place: Path, name: str) -> dict:
    return read_json(place / name / SESSION_FILE)


def counts(place: Path, name: str) -> list[pd.DataFrame]:
    """Counts of each repeat, pass by pass."""
    steps = pd.read_parquet(place / name / "steps.parquet")
    return [rows[[*COUNTS]].reset_index(drop=True) for _, rows in steps.groupby("repeat")]


def assert_complete(place: Path, rounds: int) -> None:
    """Every repeat is there once, in its round and its place, and has the same counts."""
    order = Group(members(place), Zygote({}, (), place), ID).order
    for name in ("ample", "scarce"):
        repeats = session(place, name)["clock"]["repeats"]
        assert [entry["repeat"] for entry in repeats] == list(range(rounds))
        for number, entry in enumerate(repeats):
            place_in_round = list(order(number)).index(name)
            assert entry["round"] == {"campaign": ID, "number": number, "place": place_in_round}
        first, *others = counts(place, name)
        assert len(others) == rounds - 1
        for other in others:
            pd.testing.assert_frame_equal(first, other)


def await_end(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive, alive


def engines_of(running: Group) -> list[psutil.Process]:
    return [psutil.Process(engine.pid) for engine in running._engines.values()]


def test_rounds_survive_the_deaths_of_engines_and_of_the_zygote(tmp_path: Path):
    with group(tmp_path) as (running, first):
        running.serve_round(0)
        psutil.Process(running._engines["ample"].pid).kill()
        running.serve_round(1)
        assert first.pid is not None
        psutil.Process(first.pid).kill()
        running.serve_round(2)  # parked engines do not need it
        psutil.Process(running._engines["scarce"].pid).send_signal(signal.SIGSEGV)
        running.serve_round(3)  # a second zygote forks this one
        measured, processes = running.measured(), engines_of(running)
        running.finish()
    await_end(processes)
    assert_complete(tmp_path, 4)
    assert sorted(zip(measured.experiment, measured.round, strict=True)) == [
        (name, number) for name in ("ample", "scarce") for number in range(4)
    ]
    for name in ("ample", "scarce"):
        result = session(tmp_path, name)
        assert result["finished"]
        assert result["reason"] is None
        assert result["warmup"]["uncovered_classes"] == []
        for entry in result["clock"]["repeats"]:
            assert entry["ran_s"] > 0
            assert entry["waited_s"] >= 0
    assert sum(each["preempted_requests"].sum() for each in counts(tmp_path, "scarce")) > 0


def test_a_killed_campaign_leaves_no_process_and_goes_on_where_it_ended(tmp_path: Path):
    def serve() -> None:
        with group(tmp_path) as (running, zygote):
            pids = [str(engine.pid) for engine in engines_of(running)]
            write_text(tmp_path / "pids", " ".join([*pids, str(zygote.pid)]))
            for number in range(1000):
                running.serve_round(number)

    first = multiprocessing.get_context("fork").Process(target=serve)
    first.start()
    wait_for(lambda: (tmp_path / "scarce" / SESSION_FILE).exists() and _repeats(tmp_path) >= 2)
    processes = [psutil.Process(int(pid)) for pid in (tmp_path / "pids").read_text().split()]
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    await_end(processes)
    done = _repeats(tmp_path)
    before = session(tmp_path, "ample")["clock"]["repeats"][:done]
    with group(tmp_path) as (running, _):
        for number in range(done + 2):
            running.serve_round(number)
        running.finish()
    assert_complete(tmp_path, done + 2)
    assert session(tmp_path, "ample")["clock"]["repeats"][:done] == before


def _repeats(place: Path) -> int:
    return min(len(session(place, name)["clock"]["repeats"]) for name in ("ample", "scarce"))


def wait_for(condition: Callable[[], bool], limit_s: float = 240) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_resolution_of_a_machine_is_measured_with_an_experiment_given_twice():
    said: list[str] = []
    result = measure_noise(ROOT / "config", 1.0, said.append)
    assert result.rounds >= LEAST_ROUNDS
    assert result.ratio.low < result.ratio.value < result.ratio.high
    assert result.rounds_for(result.resolution / 2) == pytest.approx(4 * result.rounds, abs=1)
    assert f"{result.ratio.value:.3f}" in "\n".join(describe(result))
    assert said[-1].startswith(f"round {result.rounds}, ")
