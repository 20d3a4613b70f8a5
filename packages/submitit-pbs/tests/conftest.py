"""The PBS of the tests: the fake PBS, or with PBS_TESTS=real the one of this machine.

A real one is told by PBS_TESTS_QUEUE (demand), PBS_TESTS_ACCOUNT (none), PBS_TESTS_FILESYSTEMS
(none) and PBS_TESTS_FOLDER (the directory that the nodes share; the present one) where jobs may run
with walltimes of some seconds.
"""

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from fake_pbs.cluster import FakePBS
from submitit_pbs import PBSExecutor
from submitit_pbs.watcher import PBSInfoWatcher

REAL = os.environ.get("PBS_TESTS") == "real"


@pytest.fixture(scope="session")
def site() -> dict[str, Any]:
    """The parameters that every job needs."""
    if not REAL:
        return {"queue": "demand", "account": "physics", "filesystems": "home"}
    answer = subprocess.run(["qstat", "-B"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, f"PBS_TESTS=real, and no PBS answers: {answer.stderr}"
    result = {
        name: os.environ.get(f"PBS_TESTS_{name.upper()}") for name in ("account", "filesystems")
    }
    return {"queue": os.environ.get("PBS_TESTS_QUEUE", "demand"), **result}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePBS | None]:
    """A running PBS whose commands are in PATH; None for a real PBS."""
    if REAL:
        yield None
        return
    with FakePBS(tmp_path / "pbs", nodes=3) as cluster:
        monkeypatch.setenv("PATH", cluster.path)
        yield cluster


@pytest.fixture
def fake(cluster: FakePBS | None) -> FakePBS:
    """The fake PBS: for failures that a user cannot cause in a real PBS."""
    if cluster is None:
        pytest.skip("what happens here is not done to a real PBS")
    return cluster


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that the nodes share."""
    if not REAL:
        yield tmp_path / "jobs"
        return
    base = Path(os.environ.get("PBS_TESTS_FOLDER", ".")).absolute()
    made = base / f"submitit-pbs-{uuid.uuid4().hex}"
    made.mkdir()
    yield made
    shutil.rmtree(made)


@pytest.fixture
def executor(
    cluster: FakePBS | None,
    folder: Path,
    site: dict[str, Any],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[PBSExecutor]:
    """An executor whose jobs take the test's functions along, and whose watcher is new."""
    cloudpickle.register_pickle_by_value(request.module)
    monkeypatch.setattr(PBSExecutor.job_class, "watcher", PBSInfoWatcher(delay_s=2))
    monkeypatch.setattr(PBSExecutor.job_class, "_results_timeout_s", 1)
    made = PBSExecutor(folder, python=sys.executable)
    made.update_parameters(**site, walltime="00:02:00")
    yield made
    cloudpickle.unregister_pickle_by_value(request.module)
