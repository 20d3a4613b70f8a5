"""`kvscope status` of what runs on a cluster: true, from any shell, and cheap on a login node."""

import json
import re
import subprocess
import sys
import time

import pytest

from submitit_packs.directory import PackDirectory, Result, Start, State
from submitit_packs.ledger import Ledger
from submitit_packs.model import Member, Pack

COUNT = 60
# Runs a command, and prints which files below a directory it opened, and what it imported.
WATCHED = """
import collections, json, sys
opened = collections.Counter()
def hook(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(sys.argv[1]):
        opened[str(arguments[0])] += 1
sys.addaudithook(hook)
from kvscope.cli import main
code = main(["status", "many", "--results", sys.argv[1]])
heavy = {"torch", "vllm", "pandas", "pyarrow", "hydra", "snakemake", "parsl"} & set(sys.modules)
print(json.dumps({"code": code, "opened": opened, "heavy": sorted(heavy)}), file=sys.stderr)
"""


@pytest.fixture
def results(tmp_path):
    """Of sixty: 10 ended well, one failed, one was cancelled with its pack, 8 run, 40 wait."""
    begun_s = time.time() - 600
    members = [Member(f"id-{i}", f"id-{i}", "true", "/", 300, 600) for i in range(COUNT)]
    root = tmp_path / "packs"
    directory, ledger = PackDirectory(root / "pack-1"), Ledger(root)
    ledger.reserve("pack-1", {m.key: 0 for m in members})
    directory.write_plan(Pack("pack-1", "prod", 2, 4, 1, 3600, tuple(members)))
    directory.write_job({"job_id": "77", "cluster": "pbs", "submitted_s": begun_s})
    attempt = directory.begin_attempt()

    def end(number: int, state: State, reason: str = "") -> Result:
        result = Result(state, 0, "n1", "2", (), begun_s, begun_s + 120, attempt, reason)
        directory.write_start(f"id-{number}", Start("n1", "2", (), begun_s, attempt))
        directory.write_result(f"id-{number}", result)
        return result

    ends = {f"id-{i}": (True, "", end(i, State.OK)) for i in range(10)}
    ledger.report(ends | {"id-11": (False, "deleted by ada (Exit_status 271)", None)})
    end(10, State.FAILED, "exit code 3")  # nobody has looked since
    for i in range(12, 20):
        directory.write_start(f"id-{i}", Start("n2", str(i % 4), (), begun_s + 300, attempt))

    needs = {"threads": 1, "memory_mib": 1, "gpus": 1, "exclusive": 0, "batch": 0, "walltime_s": 9}
    entries = [
        {"id": m.key, "label": f"label {m.key}", "grid": "", "varied": {}, "resources": needs}
        for m in members
    ]
    manifest = {"study": "many", "base": "many", "title": "", "description": "", "files": []}
    manifest |= {"varied_keys": [], "figures": [], "overrides": [], "config_sha256": ""}
    path = tmp_path / "studies" / "many" / "manifest.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(manifest | {"experiments": entries}))
    return tmp_path


@pytest.fixture
def status(results):
    command = [sys.executable, "-c", WATCHED, str(results)]
    done = subprocess.run(command, capture_output=True, text=True)
    found = json.loads(done.stderr.splitlines()[-1])
    assert found["code"] == 0
    return done.stdout, found


def test_states_places_and_reasons(status):
    text = " ".join(status[0].split())
    assert "8 running, 2 failed, 40 queued, 10 ok" in text
    assert "label id-10 failed n1 2 2.0 77 exit code 3" in text
    assert "label id-11 failed 77 deleted by ada (Exit_status 271)" in text
    assert re.search(
        r"0\.3\d node-hours used, \d\d% of the slots idle, done in about \d+ min", text
    )


def test_it_is_cheap(status):
    """Neither pandas nor Hydra; the ledger instead of a file for each end; nothing read twice."""
    _, found = status
    assert found["heavy"] == []
    assert set(found["opened"].values()) == {1}, found["opened"]
    assert len(found["opened"]) < 20
