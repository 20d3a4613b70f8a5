"""Every run is held against itself: faults of the recorder contradict something it has recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvscope.plan.experiment import load
from kvscope.run.environment import measured_environment

from .conftest import SCARCE, Runner

pytestmark = pytest.mark.engine

SWAP = ("overflow=swap", "overflow.host_blocks=64")
# Recomputing takes several passes.
RECOMPUTE = ("overflow=recompute", "batching=chunked", "batching.chunk_tokens=48")


@pytest.fixture(scope="module")
def noticed(run: Runner) -> dict[str, dict[str, list[str]]]:
    """By case and fault: the oracles that its tables violate."""
    files = [str(run(SCARCE, *case).directory / "experiment.yaml") for case in (SWAP, RECOMPUTE)]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("mutants.py")), *files],
        capture_output=True,
        text=True,
        env=os.environ | measured_environment(load(Path(files[0]))),
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert len(lines) == len(files), done.stderr[-3000:]
    swap, recompute = (json.loads(line.removeprefix("RESULT")) for line in lines)
    return {"swap": swap, "recompute": recompute}


def test_a_faulty_recorder_of_swaps_violates_an_oracle(noticed: Any) -> None:
    found = noticed["swap"]
    assert found.pop("nothing") == []
    # A swapped request recomputes nothing, and its first pass gives it a token.
    of_recomputing = {"nothing is recomputed", "only the first pass resumes"}
    assert {name for name, oracles in found.items() if not oracles} <= of_recomputing


def test_a_faulty_recorder_of_recomputation_violates_an_oracle(noticed: Any) -> None:
    found = noticed["recompute"]
    assert found.pop("nothing") == []
    of_swaps = {name for name in found if "cop" in name or "host pool" in name}
    assert {name for name, oracles in found.items() if not oracles} <= of_swaps
