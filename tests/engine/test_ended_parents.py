"""Whichever way a command of kvscope's is ended, all that it started ends within seconds."""

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.ending import ENDS, assert_all_end, names

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.thorough]

Works = Callable[[set[psutil.Process]], bool]
LONG = (
    *("model=tiny-llama", "workload=fixed", "workload.num_requests=64", "cache.blocks=512"),
    *("workload.prompt_tokens=64", "workload.output_tokens=400", "repeats=50", "profiler=none"),
)


@dataclass(frozen=True)
class Kind:
    """A command that starts others, and whether they work."""

    words: Sequence[str]
    works: Callable[[Path], Works]


def locked(place: Path, name: str) -> Works:
    return lambda _: bool([*place.glob(f"results/experiments/*/attempt/{name}")])


KINDS = {
    "dry batch": Kind(
        ("run", "--multirun", "device=dry", "seed=range(0,500)", "--results", "{}/results"),
        lambda place: lambda _: bool([*place.glob("results/experiments/*/run.json")]),
    ),
    "dry batch that imports vLLM": Kind(
        ("run", "--multirun", "device=dry", "seed=range(0,500)", "--results", "{}/results"),
        lambda place: lambda family: bool(family) and not [*place.glob("results/*/*/run.json")],
    ),
    "campaign that imports vLLM": Kind(
        ("run", "--multirun", *LONG, "seed=1,2", "--results", "{}/results"),
        lambda _: names("kvscope.run.zygote"),
    ),
    "campaign": Kind(
        ("run", "--multirun", *LONG, "seed=1,2", "--results", "{}/results"),
        lambda place: locked(place, ".session.lock"),
    ),
    "noise": Kind(("doctor", "--noise"), lambda _: names("kvscope.run.zygote")),
}


@pytest.mark.parametrize("way", ENDS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_all_that_a_command_started_ends_with_it(
    kind: str, way: "signal.Signals | str", tmp_path: Path
):
    tried = KINDS[kind]
    words = [word.format(tmp_path) for word in tried.words]
    command = [sys.executable, "-m", "kvscope.cli", *words]
    assert_all_end(command, tried.works(tmp_path), way, tmp_path)
