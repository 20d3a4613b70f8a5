"""The benchmark of a large campaign does what it says, in small; its bounds hold there, too."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "bench" / "cluster" / "campaign.py"
KEPT = SCRIPT.parents[1] / "results" / "cluster.json"
pytestmark = pytest.mark.slow


def campaigns(text: str) -> list[dict]:
    return list(json.loads(text)["campaigns"].values())


def assert_bounds(found: dict) -> None:
    assert found["ended_once"] == found["experiments"]
    assert found["planning_cpu_s"] <= 10
    assert found["controller_tasks"] <= 128
    assert found["controller_memory_bytes"] <= 1.5e9
    assert found["qstat_calls_a_cycle"] == 1
    assert found["qsub_calls"] == found["packs"]
    assert found["node_operations_s"] <= 1
    restart = found["restart"]
    assert restart["attached"] == restart["left"] > 0
    assert restart["qsub_calls"] == 0


def test_a_small_campaign_keeps_to_the_bounds():
    command = [sys.executable, str(SCRIPT), "--experiments", "90", "--nodes", "20"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    large, small = campaigns(done.stdout)
    assert_bounds(large)
    assert_bounds(small)


@pytest.mark.skipif(not KEPT.exists(), reason="the package is not in its repository")
def test_the_large_campaign_kept_to_the_bounds():
    for found in campaigns(KEPT.read_text()):
        assert_bounds(found)
        assert found["experiments"] == 10_000
        assert found["slot_idle_share"] <= 0.05
