"""Every run is held against itself: faults of the recorder contradict something it has recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvscope.plan.experiment import load
from kvscope.run.environment import measured_environment

from .conftest import SCARCE, Runner

pytestmark = pytest.mark.engine

SWAP = ("overflow=swap", "overflow.host_blocks=64")
RECOMPUTE = ("overflow=recompute", "batching=prefill_first")


@pytest.mark.parametrize("case", [SWAP, RECOMPUTE], ids=["swap", "recompute"])
def test_a_faulty_recorder_violates_an_oracle(case: tuple[str, ...], run: Runner) -> None:
    experiment = run(SCARCE, *case).directory / "experiment.yaml"
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("mutants.py")), str(experiment)],
        capture_output=True,
        text=True,
        env=os.environ | measured_environment(load(experiment)),
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert lines, done.stderr[-3000:]
    found = json.loads(lines[0].removeprefix("RESULT"))
    assert found.pop("nothing") == []
    of_swaps = {name for name in found if "cop" in name or "host pool" in name}
    # A swapped request recomputes nothing, and its first pass gives it a token.
    of_recomputing = {"nothing is recomputed", "only the first pass resumes"}
    alike = of_swaps if case == RECOMPUTE else of_recomputing
    assert {name for name, oracles in found.items() if not oracles} <= alike
