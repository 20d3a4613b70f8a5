"""Packs on PBS: Polaris's queues and messages, jobs that are processes of this machine."""

import dataclasses
import itertools
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fake_pbs.cluster import FakePBS, wait_for
from submitit_packs import sites
from submitit_packs.controller import Controller, Outcome
from submitit_packs.directory import STARTED, PackDirectory
from submitit_packs.model import Member
from submitit_packs.planner import Settings
from submitit_packs.queue import Queue
from submitit_packs.schedulers import Ending, of
from submitit_packs.schedulers.pbs import status_of
from submitit_pbs import client, status

pytestmark = pytest.mark.slow

SITE = dataclasses.replace(sites.load("polaris"), affinity="none", interfaces=("lo",))
SETTINGS = Settings(
    queues=("preemptable",),
    length_s=400,
    startup_s=30,
    poll_s=0.5,
    heartbeat_s=3,
    setup=("source site.sh",),  # in the directory of the submission, on every node
)
PATIENCE_S = 240.0


@pytest.fixture
def pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePBS]:
    with FakePBS(tmp_path / "pbs", nodes=4) as pbs:
        monkeypatch.setenv("PATH", pbs.path)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "site.sh").write_text("export SITE=here\n")
        yield pbs


def run(
    packs: Controller, members: list[Member], meanwhile: Callable[[], object] = lambda: None
) -> dict[str, Outcome]:
    """Outcome of each member, once; `meanwhile` is called between any two cycles."""
    packs.add(members)
    ended: dict[str, Outcome] = {}
    limit = time.monotonic() + PATIENCE_S
    while len(ended) < len(members):
        assert time.monotonic() < limit
        outcomes = packs.cycle()
        assert not {outcome.key for outcome in outcomes} & ended.keys()
        ended |= {outcome.key: outcome for outcome in outcomes}
        packs.reported(outcomes)
        meanwhile()
        time.sleep(0.5)
    packs.close()
    return ended


@pytest.mark.parametrize("launcher", ["mpiexec", "pbs_tmrsh"])
def test_members_run_on_all_nodes_of_a_pack_each_with_a_gpu(
    pbs: FakePBS, tmp_path: Path, launcher: str
) -> None:
    words = "$FAKE_PBS_NODE $CUDA_VISIBLE_DEVICES $PACK_NODE $SITE${OMP_NUM_THREADS-}"
    # Each waits for the others, so that all run at the same time.
    others = f"until [ $(wc -l <{tmp_path}/m) = 7 ]; do sleep 0.2; done"
    command = f"echo {words} >>{tmp_path}/m; {others}"
    members = [
        Member(f"m{i}", f"member {i}", "exit 3" if i == 7 else command, str(tmp_path), 300, 360)
        for i in range(8)
    ]
    site = dataclasses.replace(SITE, launcher=launcher)
    ended = run(Controller(tmp_path / "packs", site, SETTINGS, of("pbs", "physics")), members)
    assert {key for key, outcome in ended.items() if not outcome.ok} == {"m7"}
    assert "exit code 3" in ended["m7"].words
    places = (tmp_path / "m").read_text().splitlines()
    assert len(places) == len(set(places)) == 7
    assert {place.split()[0] for place in places} == set(pbs.hosts("1"))
    assert all(place.split()[2:] == [place.split()[0], "here"] for place in places)
    assert len(pbs.hosts("1")) == 2
    assert pbs.calls("qsub") == 1


@pytest.mark.parametrize(
    ("queue", "options", "sentence"),
    [
        ("prod", {}, "Job violates queue and/or server resource limits"),
        ("nosuch", {}, "Unknown queue"),
        ("demand", {"pbs_filesystems": None}, "Resource: filesystems is required to be set."),
        ("demand", {"pbs_account": None}, "Account_Name is required to be set."),
        ("demand", {"pbs_wall": 1}, "has no parameter wall; it has job_name, queue, account"),
    ],
)
def test_a_refusal_of_pbs_is_shown_as_its_sentence(
    pbs: FakePBS, tmp_path: Path, queue: str, options: dict[str, object], sentence: str
) -> None:
    queues = (Queue(queue, 1, 3),)
    site = dataclasses.replace(SITE, queues=queues, options={**SITE.options, **options})
    settings = dataclasses.replace(SETTINGS, queues=(queue,))
    packs = Controller(tmp_path / "packs", site, settings, of("pbs", "physics"))
    ended = run(packs, [Member("m", "member", "true", str(tmp_path), 300, 360)])
    assert sentence in ended["m"].words
    assert not ended["m"].ok
    assert "\n" not in ended["m"].words.strip()


def test_a_full_queue_is_waited_for(pbs: FakePBS, tmp_path: Path) -> None:
    for node in pbs.nodes:
        pbs.lose_node(node)  # nothing starts
    said: list[str] = []
    queue = Queue("debug-scaling", 1, 10, 300, 3600)  # of which only PBS knows that it takes one
    site = dataclasses.replace(SITE, queues=(queue,))
    settings = dataclasses.replace(SETTINGS, queues=(), max_nodes=1)
    packs = Controller(tmp_path / "packs", site, settings, of("pbs", "physics"), said.append)
    packs.add([Member(f"m{i}", "member", "true", str(tmp_path), 300, 1500) for i in range(50)])
    assert packs.cycle() == packs.cycle() == []
    packs.close()
    full = [line for line in said if line.startswith("queue debug-scaling is full, trying again")]
    assert len(full) == 1
    assert "would exceed queue generic's per-user limit" in full[0]
    assert pbs.job("1")["job_state"] == "Q"


def test_a_node_that_comes_back_and_kills_a_job_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "89.pbs01.OU").write_text(
        "=>> PBS: job killed: node 1 (x1) requested job die, code 15009\n"
    )
    attributes = {"job_state": "F", "Exit_status": "271", "comment": "Job run and failed"}
    place = {"server": "pbs01", "Output_Path": f"login01:{tmp_path}/"}
    result = status_of(status.JobStatus("89", {**attributes, **place}))
    assert result.ending is Ending.NODE_LOST
    assert result.words.startswith("killed by PBS: node 1 (x1) requested job die, code 15009")


# ------------------------------------------------------------------ a campaign with mishaps

COUNT = 28


def controller_process(root: Path, outcomes: Path) -> None:
    """A controller until it is killed, which writes each end down before it reports it."""
    packs = campaign_controller(root)
    packs.add(campaign_members(root))
    while not packs.is_idle:
        ended = packs.cycle()
        with outcomes.open("a") as file:
            file.writelines(f"{json.dumps([o.key, o.ok, o.words])}\n" for o in ended)
        packs.reported(ended)
        time.sleep(0.5)
    packs.close()


def campaign_controller(root: Path) -> Controller:
    site = dataclasses.replace(SITE, gpus_per_node=1, launcher="pbs_tmrsh")
    settings = dataclasses.replace(SETTINGS, max_nodes=2, min_nodes=2, length_s=730)
    return Controller(root / "packs", site, settings, of("pbs", "physics"))


def campaign_members(root: Path) -> list[Member]:
    def command(number: int) -> str:
        where = "$PACK_NODE $CUDA_VISIBLE_DEVICES $(date +%s.%N)"
        fails = "exit 3; " if number == 5 else ""
        nap = "until [ -e go ]; do sleep 0.3; done; sleep 0.5"
        return f"echo start {where} >>m{number}; {nap}; {fails}echo end {where} >>m{number}"

    return [Member(f"m{i}", f"member {i}", command(i), str(root), 300, 310) for i in range(COUNT)]


class Watch:
    """A campaign seen from outside."""

    def __init__(self, root: Path, pbs: FakePBS) -> None:
        self.root, self.pbs = root, pbs

    def jobs(self) -> list[str]:
        """The jobs of packs of which a member runs, in the order of their submission."""
        packs = [PackDirectory(path) for path in (self.root / "packs").glob("pack-*")]
        results = [str(j["job_id"]) for p in packs if (j := p.job()) and [*p.keys(STARTED)]]
        return sorted((job for job in results if self.state(job) == "R"), key=int)

    def state(self, job_id: str) -> str:
        return self.pbs.job(job_id)["job_state"]

    def launcher_of(self, job_id: str) -> psutil.Process:
        """The process that runs on a job's second node, and is waited for on the first."""
        for process in psutil.process_iter(["cmdline", "environ"]):
            words = process.info["cmdline"] or []
            mine = (process.info["environ"] or {}).get("PBS_JOBID", "").startswith(f"{job_id}.")
            if mine and any(word.endswith("/pbs_tmrsh") for word in words):
                return process
        raise AssertionError(f"job {job_id} has no launcher")

    def runs(self) -> dict[str, list[tuple[str, str, float, float]]]:
        """The runs of each member: node, GPU, start and end, which is infinite for a run without
        an end."""
        result: dict[str, list[tuple[str, str, float, float]]] = {}
        for path in self.root.glob("m*"):
            for line in path.read_text().splitlines():
                event, node, gpu, time_s = line.split()
                runs = result.setdefault(path.name, [])
                if event == "start":
                    runs.append((node, gpu, float(time_s), math.inf))
                else:
                    runs[-1] = (*runs[-1][:3], float(time_s))
        return result


def test_every_member_of_a_campaign_with_mishaps_ends_once_and_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakePBS(tmp_path / "pbs", nodes=14) as pbs:
        monkeypatch.setenv("PATH", pbs.path)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "site.sh").touch()
        watch, log = Watch(tmp_path, pbs), tmp_path / "outcomes"
        fork = multiprocessing.get_context("fork")
        first = fork.Process(target=controller_process, args=(tmp_path, log))
        first.start()
        wait_for(lambda: len(watch.jobs()) == 7, PATIENCE_S)
        first.kill()
        first.join()
        loses_first, loses_other, deleted, preempted, shortened, unlaunched, _ = watch.jobs()
        pbs.lose_node(pbs.hosts(loses_first)[0])
        pbs.lose_node(pbs.hosts(loses_other)[1])
        client.cancel([deleted])
        pbs.preempt(preempted)
        pbs.shorten(shortened, 1)
        watch.launcher_of(unlaunched).kill()
        wait_for(lambda: watch.state(deleted) == watch.state(shortened) == "F", PATIENCE_S)
        (tmp_path / "go").touch()  # after these two ended: their members had not
        pbs.stop()
        second = fork.Process(target=controller_process, args=(tmp_path, log))
        second.start()
        time.sleep(3)
        pbs.start()
        second.join(PATIENCE_S)
        assert second.exitcode == 0
        wait_for(lambda: pbs.processes() == 0)

    ended = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(key for key, _, _ in ended) == sorted(f"m{i}" for i in range(COUNT))
    reasons = {key: words for key, ok, words in ended if not ok}
    assert "exit code 3" in reasons.pop("m5")
    expected = ("deleted by", "walltime exceeded (Exit_status -29)")
    assert {next((e for e in expected if e in words), words) for words in reasons.values()} == {
        *expected
    }
    runs = watch.runs()
    for key, ok, _ in ended:
        times = sum(run[3] < math.inf for run in runs.get(key, ()))
        assert times == ok, f"{key} was done {times} times"
    by_gpu: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for node, gpu, start_s, end_s in (run for found in runs.values() for run in found):
        by_gpu.setdefault((node, gpu), []).append((start_s, end_s))
    for times in by_gpu.values():
        whole = sorted(t for t in times if t[1] < math.inf)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(whole)), "two on one GPU"
