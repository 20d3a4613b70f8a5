"""Real runs of real vLLM on the CPU, each made once and shared by the tests that look at it."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from kvscope.judge.records import Records, read_records
from kvscope.plan.grid import expand
from kvscope.report.check_run import check_run
from kvscope.run.progress import Progress
from tests.warm import Warm

ROOT = Path(__file__).parents[2]
SMALL = (
    *("workload=uniform", "workload.num_requests=8", "workload.min_tokens=60"),
    *("workload.max_tokens=160", "workload.prompt_to_output_ratio=2"),
    *("engine.max_model_len=192", "engine.max_num_batched_tokens=256", "engine.max_num_seqs=8"),
    *("cache.block_size=32", "repeats=2", "warmup=1", "seed=5"),
)
AMPLE, SCARCE = "cache.blocks=64", "cache.blocks=13"


@dataclass(frozen=True)
class Run:
    """A finished run: its directory, run.json, and tables."""

    directory: Path
    facts: dict
    records: Records

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_parquet(self.directory / f"{name}.parquet")


def kvscope(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command line, as a user calls it."""
    return subprocess.run(
        [sys.executable, "-m", "kvscope.cli", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | (env or {}),
    )


class Silent(Progress):
    """Progress that is not shown."""

    def __init__(self) -> None:
        """Without a file."""

    def advance(self, tokens: int) -> None:
        """Show nothing."""


Runner = Callable[..., Run]


@pytest.fixture(scope="session")
def run(warm: Warm) -> Runner:
    """`run(*overrides)`: the run of SMALL with these settings changed; made on first demand.

    All workers of a parallel run share them: of two that want one, the second finds it finished.
    """
    made: dict[tuple[str, ...], Run] = {}

    def run(*overrides: str) -> Run:
        if overrides not in made:
            words = last_of_each_key([*SMALL, "profiler=none", *overrides])
            (planned,) = expand(None, words, ROOT / "config").experiments
            directory = warm.directory / "runs" / planned.experiment.id
            facts = warm.run(planned.experiment, directory)
            assert facts["status"] == "complete", (directory / "log.txt").read_text()[-3000:]
            # Every run is held against itself. Under load all of its requests may time out.
            assert [c for c in check_run(directory, quick=True) if "nothing_served" not in c] == []
            made[overrides] = Run(directory, facts, read_records(directory))
        return made[overrides]

    return run


def directory_of(warm: Warm, words: list[str], place: str) -> Path:
    """The directory of a complete run of these settings, in the folder `place` of all such."""
    (planned,) = expand(None, words, ROOT / "config").experiments
    directory = warm.directory / place / planned.experiment.id
    facts = warm.run(planned.experiment, directory)
    assert facts["status"] == "complete", (directory / "log.txt").read_text()[-3000:]
    return directory


def last_of_each_key(words: list[str]) -> list[str]:
    """Keep the last of several settings of a key: Hydra refuses a key given twice."""
    return list({word.partition("=")[0]: word for word in words}.values())
