"""Packs on a real Slurm: nodes are lost, jobs cancelled, preempted, requeued; nothing is lost."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from real_slurm import Slurm, missing
from submitit_packs import controller as controllers
from submitit_packs import schedulers, sites
from submitit_packs.controller import Controller, Outcome
from submitit_packs.directory import PackDirectory
from submitit_packs.errors import BadSettings
from submitit_packs.model import Member
from submitit_packs.overview import overview
from submitit_packs.planner import Settings

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
PATIENCE_S = 240.0
SETTINGS = Settings(
    queues=("prod",),
    length_s=40,
    startup_s=20,
    margin_s=10,
    poll_s=0.5,
    heartbeat_s=2,
    min_fill=0,
    options={"slurm_additional_parameters": {}},
)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory) -> Iterator[Slurm]:
    if lacking := missing():
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have Slurm: {', '.join(lacking)}")
        pytest.skip(f"Slurm is not here: {', '.join(lacking)}")
    with (
        Slurm(tmp_path_factory.mktemp("slurm"), nodes=3, gpus=2) as slurm,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in slurm.environment.items():
            patch.setenv(name, value)
        patch.setattr(controllers, "GRACE_S", 1.0)
        yield slurm


class Campaign:
    """Members on Slurm, and their ends."""

    def __init__(self, slurm: Slurm, root: Path, members: list[Member], settings=SETTINGS) -> None:
        self.slurm, self.root, self.members, self.settings = slurm, root, members, settings
        self.said: list[str] = []
        self.ended: dict[str, Outcome] = {}
        self.site = sites.load("slurm")
        self.controller = self.begin()

    def begin(self) -> Controller:
        found = Controller(
            self.root / "packs", self.site, self.settings, schedulers.of("slurm"), self.said.append
        )
        self.attached = found.add(m for m in self.members if m.key not in self.ended)
        return found

    def until(self, condition: Callable[[], object]) -> None:
        limit = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < limit, (self.said, self.states(), self.slurm.jobs())
            outcomes = self.controller.cycle()
            for outcome in outcomes:
                assert outcome.key not in self.ended
                self.ended[outcome.key] = outcome
            self.controller.reported(outcomes)
            time.sleep(0.5)

    def finish(self) -> None:
        self.until(lambda: len(self.ended) == len(self.members))
        assert self.controller.is_idle
        self.assert_one_member_a_gpu()

    def states(self) -> dict[str, str]:
        return {k: m.state for k, m in overview(self.root / "packs").members.items()}

    def running(self) -> int:
        return list(self.states().values()).count("running")

    def done(self) -> int:
        return list(self.states().values()).count("ok")

    def began(self) -> dict[str, int]:
        return {p.suffix[1:]: len(p.read_text().split()) for p in self.root.glob("began.*")}

    def job(self) -> str:
        """The oldest job that runs."""
        return min(self.slurm.jobs("running"), key=int)

    def hosts(self) -> set[str]:
        return {m.host for m in overview(self.root / "packs").members.values() if m.host}

    def assert_one_member_a_gpu(self) -> None:
        """By what the members themselves wrote down."""
        times = defaultdict(list)
        for path in self.root.glob("times.*"):
            for line in path.read_text().splitlines():
                where, begin_s, end_s = line.split()
                times[where].append((float(begin_s), float(end_s)))
        for spans in times.values():
            spans.sort()
            for before, after in pairwise(spans):
                assert before[1] <= after[0], "two members on one GPU"

    def left(self) -> list[str]:
        """The processes of members that are still there."""
        found = []
        for process in psutil.process_iter(["environ"]):
            place = (process.info["environ"] or {}).get("PACK_DIRECTORY", "")
            if place.startswith(str(self.root)):
                found.append(" ".join(process.cmdline()))
        return found


@pytest.fixture
def campaign(slurm, tmp_path):
    campaigns = []

    def make(count: int = 6, nap_s: float = 2.0, bad: int = -1, **settings) -> Campaign:
        members = []
        for i in range(count):
            command = (
                f"echo x >> began.m{i}; t=$(date +%s.%N); sleep {nap_s}; "
                f"[ {i} != {bad} ] || exit 1; "
                f"echo $PACK_NODE/$CUDA_VISIBLE_DEVICES $t $(date +%s.%N) >> times.m{i}"
            )
            members.append(Member(f"m{i}", f"m{i}", command, str(tmp_path), nap_s, nap_s + 60))
        how = Settings(**{**vars(SETTINGS), **settings})
        campaigns.append(Campaign(slurm, tmp_path, members, how))
        return campaigns[-1]

    yield make
    for made in campaigns:
        made.controller.cancel()
        made.controller.close()
    limit = time.monotonic() + PATIENCE_S
    while slurm.idle() < 3 and time.monotonic() < limit:
        time.sleep(0.5)


def test_members_share_nodes_and_a_failing_one_costs_no_other(campaign):
    found = campaign(count=10, nap_s=4, bad=3, length_s=35)
    found.finish()
    assert {key for key, outcome in found.ended.items() if not outcome.ok} == {"m3"}
    assert found.ended["m3"].words.startswith("failed: exit code 1 (on n")
    assert len(found.hosts()) > 1
    assert set(found.began().values()) == {1}
    assert found.left() == []


def test_a_controller_that_is_started_again(campaign):
    found = campaign(count=6, nap_s=6)
    found.until(found.running)
    found.controller.close()  # as after kill -9: nothing is cancelled, nothing is told
    found.controller = found.begin()
    assert len(found.attached) == 6
    found.finish()
    assert set(found.began().values()) == {1}
    assert all(outcome.ok for outcome in found.ended.values())


def test_a_job_cancelled_by_hand(campaign):
    found = campaign(count=6, nap_s=60)
    found.until(found.running)
    found.slurm.call("scancel", found.job())
    found.finish()
    reasons = {outcome.words.partition(" (pack")[0] for outcome in found.ended.values()}
    assert reasons == {"cancelled (CANCELLED)"}
    found.until(lambda: not found.left())


@pytest.mark.parametrize("how", ["preempted", "requeued"])
def test_a_job_that_runs_again(campaign, how):
    found = campaign(count=6, nap_s=8, length_s=60, max_nodes=1)
    found.until(lambda: found.done() >= 2 and found.running())
    done = {key for key, state in found.states().items() if state == "ok"}
    if how == "preempted":
        words = ("--partition=demand", "--nodes=3", "--time=1", "--output=/dev/null")
        found.slurm.call("sbatch", *words, "--wrap", "sleep 3")
    else:
        found.slurm.call("scontrol", "requeue", found.job())
    found.finish()
    assert all(outcome.ok for outcome in found.ended.values()), found.ended
    began = found.began()
    assert {began[key] for key in done} == {1}, "something finished was redone"
    assert 2 in began.values()
    assert found.left() == []


@pytest.mark.parametrize("which", ["first", "last"])
def test_a_node_is_lost(campaign, which):
    found = campaign(count=12, nap_s=10, length_s=65, max_nodes=2)
    found.until(
        lambda: (
            len(
                {
                    m.host
                    for m in overview(found.root / "packs").members.values()
                    if m.state == "running"
                }
            )
            == 2
        )
    )
    job = found.job()
    nodes = found.slurm.call(
        "scontrol",
        "show",
        "hostnames",
        found.slurm.call("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip(),
    ).split()
    node = nodes[0 if which == "first" else -1]
    found.slurm.lose(node)
    try:
        found.finish()
    finally:
        found.slurm.start_node(node)
    assert all(outcome.ok for outcome in found.ended.values()), found.ended
    assert max(found.began().values()) == 2
    assert found.left() == []


def test_a_killed_launcher(campaign):
    found = campaign(count=8, nap_s=6, length_s=44, max_nodes=2)
    found.until(found.running)
    directory = next((found.root / "packs").glob("pack-*"))
    launchers = [
        p for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [""])[0] == "srun"
    ]
    assert launchers
    for process in launchers:
        process.kill()
    found.finish()
    assert all(outcome.ok for outcome in found.ended.values()), found.ended
    assert len(list((found.root / "packs").glob("pack-*"))) == 2
    assert PackDirectory(directory).attempt().stop
    assert found.left() == []


def test_what_slurm_refuses_is_its_sentence(campaign):
    found = campaign(options={"slurm_gres": "gpu:99"})
    found.finish()
    (message,) = found.said
    assert "submission refused: " in message
    assert "Requested node configuration is not available" in message


def test_limits_are_checked_before_submission(campaign):
    found = campaign(count=1)
    with pytest.raises(BadSettings, match="queue is 'nosuch', and slurm has prod, demand"):
        found.site.candidates(["nosuch"])
    found.members.append(Member("long", "long", "true", "/", 1, 7200))
    found.controller.add(found.members[-1:])
    found.finish()
    assert found.ended["long"].words == (
        "long may take 02:00:00, with start and end of its job 02:00:30, and no queue allows "
        "that: prod (1 to 3 nodes, 01:00:00)"
    )


def test_what_can_never_run_is_told(campaign):
    """Slurm accepts a partition's limits violated, and keeps the job for ever."""
    found = campaign(count=2, options={"slurm_additional_parameters": {"nodes": 9}})
    found.finish()
    (reason,) = {outcome.words.partition(" (pack")[0] for outcome in found.ended.values()}
    assert "nodes" in reason or "PartitionNodeLimit" in reason
    assert found.slurm.jobs("pending") == {}
