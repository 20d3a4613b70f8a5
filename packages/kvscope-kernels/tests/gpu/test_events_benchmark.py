"""The benchmark for machines with a GPU runs without a GPU, in small."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[4] / "bench" / "gpu" / "events.py"


def test_it_rehearses(triton):
    done = subprocess.run([sys.executable, SCRIPT, "--rehearse"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    *rows, verdict = done.stdout.splitlines()
    assert verdict == "Everything is as it should be."
    assert len(rows) == 3
    for row in map(json.loads, rows):
        assert row["events"] == row["expected_events"] > 0
        assert row["same_bits_when_recording"]
