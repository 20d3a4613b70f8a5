"""`kvscope status` of what runs on a cluster: true, from any shell, and cheap on a login node."""

import json
import re
import subprocess
import sys
import time

import pytest

from kvscope.plan import batches
from kvscope_cluster import members as cluster_members
from kvscope_cluster.members import STAGES_EXPECTED_S, members
from kvscope_cluster.show import look
from submitit_packs.directory import PackDirectory, Result, Start, State
from submitit_packs.ledger import Ledger
from submitit_packs.model import Member, Pack
from tests.unit.plans import entry, manifest_of

COUNT = 60
# Measured experiments that are compared with no other: each is a batch.
STUDY = manifest_of((entry(f"id-{i:02}", gpus=1, together=i) for i in range(COUNT)), "many")
MODELED = manifest_of((entry(f"e{n:02}", batch=1) for n in range(37)), "modeled")
# Runs a command, and prints which files below a directory it opened, and what it imported.
WATCHED = """
import collections, json, sys
opened = collections.Counter()
def hook(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(sys.argv[1]):
        opened[str(arguments[0])] += 1
sys.addaudithook(hook)
from kvscope.cli.main import main
code = main(["status", "many", "--results", sys.argv[1]])
heavy = {"torch", "vllm", "pandas", "pyarrow", "hydra", "snakemake", "parsl"} & set(sys.modules)
print(json.dumps({"code": code, "opened": opened, "heavy": sorted(heavy)}), file=sys.stderr)
"""


@pytest.fixture
def results(tmp_path):
    """Results of sixty: 10 ended well, one failed, one was cancelled with its pack, 8 run, 40
    wait."""
    begun_s = time.time() - 600
    parts = batches.parts(STUDY, COUNT, None)[batches.MEASURED]
    names = [batches.name("many", batches.MEASURED, part, parts) for part in range(parts)]
    keys = [f"id-{i:02}" for i in range(COUNT)]
    assert [batches.of_name(STUDY, name) for name in names] == [[key] for key in keys]
    pairs = zip(keys, names, strict=True)
    members = [Member(key, name, "true", "/", 300, 600) for key, name in pairs]
    root = tmp_path / "packs"
    directory, ledger = PackDirectory(root / "pack-1"), Ledger(root)
    ledger.reserve("pack-1", {m.key: 0 for m in members})
    directory.write_plan(Pack("pack-1", "prod", 2, 4, 1, 3600, tuple(members)))
    directory.write_job({"job_id": "77", "cluster": "pbs", "submitted_s": begun_s})
    attempt = directory.begin_attempt()

    def end(number: int, state: State, reason: str = "") -> Result:
        result = Result(state, 0, "n1", "2", (), begun_s, begun_s + 120, attempt, reason)
        directory.write_start(keys[number], Start("n1", "2", (), begun_s, attempt))
        directory.write_result(keys[number], result)
        return result

    ends = {keys[i]: (True, "", end(i, State.OK)) for i in range(10)}
    ledger.report(ends | {keys[11]: (False, "deleted by ada (Exit_status 271)", None)})
    end(10, State.FAILED, "exit code 3")  # nobody has looked since
    for i in range(12, 20):
        directory.write_start(keys[i], Start("n2", str(i % 4), (), begun_s + 300, attempt))

    path = tmp_path / "studies" / "many" / "manifest.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(STUDY))
    return tmp_path


@pytest.fixture
def status(results):
    command = [sys.executable, "-c", WATCHED, str(results)]
    done = subprocess.run(command, capture_output=True, text=True)
    result = json.loads(done.stderr.splitlines()[-1])
    assert result["code"] == 0
    return done.stdout, result


def test_states_places_and_reasons(status):
    text = " ".join(status[0].split())
    assert "8 running, 2 failed, 40 queued, 10 ok" in text
    assert "label id-10 failed n1 2 2.0 77 exit code 3" in text
    assert "label id-11 failed 77 deleted by ada (Exit_status 271)" in text
    assert re.search(
        r"0\.3\d node-hours used, \d\d% of the slots idle, done in about \d+ min", text
    )


def test_modeled_experiments_are_submitted_in_batches_that_stay_the_same(tmp_path):
    result = members(MODELED, tmp_path)
    assert [m.name for m in result] == [
        f"run_experiments modeled modeled {part} 3" for part in range(3)
    ]
    ids = [word.split("/")[-2] for m in result for word in m.command.split() if "yaml" in word]
    assert sorted(ids) == [f"e{n:02}" for n in range(37)]
    assert all(f"--results {tmp_path}" in m.command for m in result)
    each_has = batches.CAMPAIGN_S + STAGES_EXPECTED_S
    assert sum(m.expected_s for m in result) == 37 * 6 + 3 * each_has
    other = members(MODELED | {"experiments": MODELED["experiments"][1:]}, tmp_path)
    assert {m.key for m in result} & {m.key for m in other} == set(), "of other experiments"


def test_a_batch_is_submitted_as_long_as_one_of_its_experiments_lacks_its_metrics(
    tmp_path, monkeypatch
):
    whole = members(MODELED, tmp_path)
    first = set(batches.batch(MODELED, batches.MODELED, 0, 3))
    monkeypatch.setattr(cluster_members, "is_finished", lambda id_, _: id_ in first)
    assert members(MODELED, tmp_path) == whole[1:]
    first -= {next(iter(first))}
    assert members(MODELED, tmp_path) == whole


def test_each_experiment_of_a_batch_is_shown_where_it_stands(tmp_path):
    """Three batches on two slots: what their logs say of each, and where the next one is."""
    root, packs = tmp_path / "packs", members(MODELED, tmp_path)
    directory, ledger = PackDirectory(root / "pack-1"), Ledger(root)
    ledger.reserve("pack-1", {m.key: 0 for m in packs})
    directory.write_plan(Pack("pack-1", "debug", 1, 2, 1, 3600, tuple(packs)))
    attempt, now_s = directory.begin_attempt(), time.time()
    for number in range(2):
        directory.write_start(packs[number].key, Start("n1", str(number), (), now_s - 60, attempt))
    first, second, third = (batches.batch(MODELED, batches.MODELED, part, 3) for part in range(3))
    said = [batches.line(1, 13, first[0], 2.0, None), batches.line(2, 13, first[1], 1.0, "no room")]
    directory.log(packs[0].key).write_text("\n".join(["import", *said, ""]))

    rows = look(MODELED, tmp_path).rows
    assert rows.keys() == {f"e{n:02}" for n in range(37)}
    assert [rows[id_].state for id_ in first] == ["ok", "failed", "running", *["queued"] * 10]
    assert rows[first[1]].reason == "no room"
    assert rows[first[0]].busy_s(now_s) == pytest.approx(2.0)
    assert [rows[id_].state for id_ in second] == ["running", *["queued"] * 11]
    assert (rows[second[0]].host, rows[second[0]].gpu, rows[second[1]].host) == ("n1", "1", "")
    assert {rows[id_].state for id_ in third} == {"queued"}

    result = Result(State.FAILED, 1, "n1", "0", (), now_s - 60, now_s, attempt, "exit code 1")
    more = [batches.line(n, 13, id_, 1.0, None) for n, id_ in enumerate(first[2:], 3)]
    with directory.log(packs[0].key).open("a") as log:
        log.write("\n".join(more))
    ledger.report({packs[0].key: (False, "exit code 1", result)})
    rows = look(MODELED, tmp_path).rows
    assert [rows[id_].state for id_ in first] == ["ok", "failed", *["ok"] * 11]


def test_it_is_cheap(status):
    """Neither pandas nor Hydra; the ledger instead of a file for each end; nothing read twice."""
    _, result = status
    assert result["heavy"] == []
    assert set(result["opened"].values()) == {1}, result["opened"]
    assert len(result["opened"]) < 20
