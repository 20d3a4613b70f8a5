"""Packs on a real Slurm: whatever happens, each member ends once, with its own reason."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from real_slurm import Slurm, until
from submitit_packs import controller as controllers
from submitit_packs import schedulers, sites
from submitit_packs.controller import Controller
from submitit_packs.directory import PackDirectory, Result
from submitit_packs.errors import BadSettings
from submitit_packs.model import Member
from submitit_packs.overview import Overview, overview
from submitit_packs.planner import Settings
from submitit_packs.schedulers import Phase

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # also on a machine with other work
PATIENCE_S = 800.0
HERE = Path(__file__).parent
SETTINGS = Settings(
    queues=("prod", "long"),
    length_s=660,
    startup_s=20,
    margin_s=10,
    poll_s=1,
    heartbeat_s=5,
    min_fill=0,
)
# A member notes that it began, waits for a word, and notes when it ran.
COMMAND = """
echo x >> began.{key}; t=$(date +%s.%N)
while [ ! -e go ] && [ ! -e $PACK_DIRECTORY/go.{key} ]; do sleep 0.5; done
for gpu in ${{CUDA_VISIBLE_DEVICES//,/ }}; do
    echo $PACK_NODE/$gpu $t $(date +%s.%N) >> times.{key}
done
"""


class Story:
    """64 members on a dozen nodes, whose packs meet with all that can happen, at the same time.

    Members with one GPU have packs of two nodes, eight members each, which run four at a time;
    those with two GPUs have packs of one node, about eight members one after the other. One member
    fails, and one takes too long.
    """

    FATES = (
        *("first node lost", "last node lost", "launcher killed"),  # of two nodes
        *("preempted", "requeued", "cancelled", "walltime", "pilot killed"),  # of one
    )

    def __init__(self, slurm: Slurm, root: Path) -> None:
        self.slurm, self.root = slurm, root
        small = [self._member(f"s{i:02}", 300, 600, 1) for i in range(22)]
        large = [self._member(f"l{i:02}", 90, 1790, 2) for i in range(40)]
        bad = Member("bad", "bad", "echo x >> began.bad; echo no; exit 3", str(root), 302, 600)
        slow = Member("slow", "slow", "echo x >> began.slow; sleep 1000", str(root), 301, 2)
        self.members = [*small, *large, bad, slow]
        plain = {"members": [asdict(m) for m in self.members], "settings": vars(SETTINGS)}
        (root / "members.json").write_text(json.dumps(plain))
        self.fates: dict[str, str] = {}  # pack of a fate
        self.done_before: set[str] = set()  # of what ended well before the fates
        self.log = root / "controller.log"

    def _member(self, key: str, expected_s: float, timeout_s: float, gpus: int) -> Member:
        return Member(
            key, key, COMMAND.format(key=key), str(self.root), expected_s, timeout_s, gpus
        )

    # ------------------------------------------------------------------ what happens

    def tell(self) -> None:
        self._start_controller()
        until("two jobs are there", lambda: len(self.slurm.jobs()) >= 2, PATIENCE_S)
        self.kill_controller()  # in the midst of its submissions
        self._start_controller()
        until("all members are in packs", lambda: len(self.overview().members) == 64, PATIENCE_S)
        until("all jobs are there", lambda: self.slurm.jobs().keys() == self._plans().keys())
        self._until_running(len(self._plans()))
        self._slurm_is_down_for_a_while()
        for pack, keys in self._plans().items():  # two end before anything happens
            for key in keys[:3]:
                (self._packs / pack / f"go.{key}").touch()
        until("some have ended", lambda: all(self._has_ended_some(p) for p in self._plans()))
        self._until_running(len(self._plans()))
        self.kill_controller()
        self.done_before = {k for k, m in self.overview().members.items() if m.state == "ok"}
        self._decree()
        self._start_controller()
        until("the fates are met", self._are_met, PATIENCE_S)
        (self.root / "go").touch()
        until("it ends", lambda: self.controller.poll() is not None, PATIENCE_S)
        assert self.controller.returncode == 0

    def _decree(self) -> None:
        """Let each pack meet its fate."""
        jobs = self.slurm.jobs("running")
        plans = self._plans()
        large = [p for p in plans if plans[p][-1].startswith("l")]
        small = [p for p in plans if p not in large]
        assert len(small) == 3, plans
        # Members that the first controller left are dealt anew, perhaps to more packs than fates.
        self.fates = dict(zip(self.FATES, [*small, *large], strict=False))
        assert self.fates.keys() == set(self.FATES), plans
        job = {fate: jobs[pack] for fate, pack in self.fates.items()}
        for fate, number in (("first node lost", 0), ("last node lost", -1)):
            node = self.slurm.nodes_of(job[fate])[number]
            self.slurm.stop(node)
            self.slurm.lost.append(node)
        (srun,) = self.slurm.find("srun", self.fates["launcher killed"])[:1]
        srun.kill()
        (pilot,) = self.slurm.find("-m submitit_packs.pilot", self.fates["pilot killed"])[:1]
        pilot.kill()
        self.slurm.call("scancel", job["cancelled"])
        self.slurm.call("scontrol", "requeue", job["requeued"])
        self.slurm.call("scontrol", "update", f"jobid={job['walltime']}", "timelimit=1")
        (node,) = self.slurm.nodes_of(job["preempted"])
        words = ("--partition=demand", f"--nodelist={node}", "--time=1", "--output=/dev/null")
        self.slurm.call("sbatch", *words, "--wrap", "true")

    def _are_met(self) -> bool:
        jobs = self.slurm.call("squeue", "--noheader", "--states=all", "--format=%j %T %r")
        states = dict(line.split(None, 1) for line in jobs.splitlines())
        again = [PackDirectory(self._packs / self.fates[f]) for f in ("preempted", "requeued")]
        return states[self.fates["walltime"]].startswith("TIMEOUT") and all(
            states[d.id].startswith("PENDING") or d.attempt().number == 2 for d in again
        )

    def _slurm_is_down_for_a_while(self) -> None:
        self.slurm.shut_down_controller()
        until("it is noticed", lambda: "slurm does not answer" in self.log.read_text())
        self.slurm.start_controller()
        until("Slurm answers", lambda: self.slurm.answers())

    def _start_controller(self) -> None:
        with self.log.open("ab") as log:
            self.controller = subprocess.Popen(
                [sys.executable, "-u", HERE / "drive.py", self.root],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill_controller(self) -> None:
        self.controller.kill()
        self.controller.wait()

    # ------------------------------------------------------------------ reports

    @property
    def _packs(self) -> Path:
        return self.root / "packs"

    def overview(self) -> Overview:
        return overview(self._packs)

    def _plans(self) -> dict[str, list[str]]:
        """The members of each pack, in the order in which they begin."""
        return {p.pack.id: [m.key for m in p.pack.members] for p in self.overview().packs}

    def _until_running(self, packs: int) -> None:
        def running() -> bool:
            found = [
                p for p in self.overview().packs if any(m.state == "running" for m in p.members)
            ]
            return len(found) == packs

        until("all packs run members", running, PATIENCE_S)

    def _has_ended_some(self, pack: str) -> bool:
        directory = PackDirectory(self._packs / pack)
        return len(set(directory.keys())) >= 3

    def ended(self) -> list[dict]:
        return [json.loads(line) for line in (self.root / "ended.jsonl").read_text().splitlines()]

    def describe(self) -> str:
        """All that helps to understand what went wrong."""
        lines = [self.log.read_text(), str(self.fates)]
        for pack in self.overview().packs:
            states = {m.member.key: m.state for m in pack.members}
            lines.append(f"{pack.pack.id} job {pack.job_id}: {states}")
        lines.append(self.slurm.call("squeue", "--states=all"))
        lines.append(self.slurm.call("sinfo", "--Node", "--partition=prod", "--long"))
        lines += [p.read_text()[-4000:] for p in self.slurm.state.glob("slurmctld.log")]
        return "\n".join(lines)

    def words(self) -> dict[str, str]:
        return {line["key"]: line["words"].partition(" (pack")[0] for line in self.ended()}

    def began(self) -> dict[str, int]:
        return {p.suffix[1:]: len(p.read_text().split()) for p in self.root.glob("began.*")}

    def members_of(self, fate: str) -> list[str]:
        """The members that had not ended when their pack met its fate."""
        keys = self._plans()[self.fates[fate]]
        return [key for key in keys if key not in self.done_before | {"bad", "slow"}]

    def results(self) -> Iterator[Result]:
        for path in self._packs.glob("pack-*/*.rc"):
            result = PackDirectory(path.parent).result(path.stem)
            assert result is not None, path
            if result.exit_code is not None:
                yield result


@pytest.fixture(scope="module")
def story(here, tmp_path_factory) -> Iterator[Story]:
    story = Story(here, tmp_path_factory.mktemp("story"))
    try:
        story.tell()
        yield story
    except BaseException:
        print(story.describe(), file=sys.stderr)
        raise
    finally:
        story.kill_controller()
        here.clear()


def test_every_member_ends_exactly_once(story):
    keys = [line["key"] for line in story.ended()]
    assert sorted(keys) == sorted(m.key for m in story.members)


def test_a_controller_that_is_started_again_submits_nothing_twice(story):
    first, second, third = (
        int(line.rpartition(" ")[2])
        for line in story.log.read_text().splitlines()
        if line.startswith("attached: ")
    )
    assert first == 0
    assert second >= 16  # of two packs at least
    assert third >= 32
    assert "Traceback" not in story.log.read_text()


def test_a_cancelled_member_does_not_run_again(story):
    lost = story.members_of("cancelled")
    assert lost
    assert {story.words()[key] for key in lost} == {"cancelled (CANCELLED)"}


def test_a_member_that_runs_at_the_walltime_has_that_as_its_reason(story):
    directory = PackDirectory(story.root / "packs" / story.fates["walltime"])
    lost = story.members_of("walltime")
    ran = [key for key in lost if directory.start(key)]
    assert ran
    assert {story.words()[key] for key in ran} == {"walltime exceeded (TIMEOUT)"}
    in_line = {key for key in lost if key not in ran}
    assert in_line <= {line["key"] for line in story.ended() if line["ok"]}


@pytest.mark.parametrize("fate", sorted({*Story.FATES} - {"cancelled", "walltime"}))
def test_lost_members_run_again(story, fate):
    lost = story.members_of(fate)
    assert lost
    ok = {line["key"]: line["ok"] for line in story.ended()}
    assert all(ok[key] for key in lost), story.words()
    assert max(story.began()[key] for key in lost) == 2, "none ran again"


def test_members_end_by_themselves_with_their_own_reason(story):
    words = story.words()
    assert words["bad"].startswith("failed: exit code 3 (on n")
    assert words["bad"].endswith("no")  # the last line of its log
    assert words["slow"].startswith("timeout: took more than 2 s (on n")


def test_nothing_finished_is_redone(story):
    assert len(story.done_before) >= 20
    assert {story.began()[key] for key in story.done_before} == {1}
    done = {m.key: 0 for m in story.members}
    for path in (story.root / "packs").glob("pack-*/*.rc"):
        done[path.stem] += PackDirectory(path.parent).result(path.stem).is_final
    ended = {"bad", "slow"} | {line["key"] for line in story.ended() if line["ok"]}
    assert done == {m.key: int(m.key in ended) for m in story.members}


def assert_apart(spans: dict[str, list[tuple[float, float]]]) -> None:
    assert len(spans) > 16
    for gpu, times in spans.items():
        for before, after in pairwise(sorted(times)):
            assert before[1] <= after[0], f"two members on {gpu}"


def test_two_members_are_never_on_one_gpu(story):
    """Checked by the results, and by the members' own notes."""
    results, members = defaultdict(list), defaultdict(list)
    for result in story.results():
        for gpu in result.gpu.split(","):
            results[f"{result.host}/{gpu}"].append((result.start_s, result.end_s))
    for path in story.root.glob("times.*"):
        for line in path.read_text().splitlines():
            where, begin_s, end_s = line.split()
            members[where].append((float(begin_s), float(end_s)))
    assert_apart(results)
    assert_apart(members)


def test_no_process_is_left_on_any_node(story):
    until("all jobs are over", lambda: not story.slurm.jobs("running,pending,completing"))
    until("all processes have ended", lambda: not story.slurm.find(), 60)


# ---------------------------------------------------------------------- refusals


@pytest.fixture
def control(here, tmp_path, monkeypatch):
    """Give members to a controller until all have ended: its messages, and the outcomes."""

    monkeypatch.setattr(controllers, "GRACE_S", 0.0)

    def run(members, site=None, **settings):
        said: list[str] = []
        how = Settings(**{**vars(SETTINGS), **settings})
        result = Controller(
            tmp_path / "packs",
            site or sites.load("slurm"),
            how,
            schedulers.of("slurm"),
            said.append,
        )
        result.add(members)
        outcomes = []

        def is_idle() -> bool:
            outcomes.extend(result.cycle())
            return result.is_idle

        try:
            until("all have ended", is_idle, PATIENCE_S)
        finally:
            result.cancel()
            result.close()
            here.clear()
        return said, {o.key: o.words.partition(" (pack")[0] for o in outcomes}

    return run


def member(key: str = "one", timeout_s: float = 300) -> Member:
    return Member(key, key, "true", "/tmp", 10, timeout_s)


def test_a_wrong_partition_is_one_sentence(here):
    names = "prod, long, demand, physics"
    with pytest.raises(BadSettings, match=f"queue is 'nosuch', and slurm has {names}"):
        sites.load("slurm").candidates(["nosuch"])


def test_a_walltime_beyond_the_limits_is_not_submitted(control, here):
    _, words = control([member(timeout_s=7200)])
    assert words["one"] == (
        "one may take 02:00:00, with start and end of its job 02:00:30, and no queue allows "
        "that: prod (1 to 2 nodes, 00:30:00), long (1 to 1 nodes, 01:00:00)"
    )


def test_a_partition_of_other_accounts_is_used_only_by_name(control, here):
    """Slurm accepts the job, and keeps it for ever."""
    assert "physics" not in {queue.name for queue in sites.load("slurm").candidates()}
    _, words = control([member()], queues=("physics",))
    assert words["one"] == (
        "Job's account not known, so it can't use this partition (physics allows physics)"
    )
    assert here.jobs("pending") == {}


def test_a_refusal_of_slurm_is_shown_as_its_sentence(control):
    said, words = control([member("one"), member("two")], options={"slurm_gres": "gpu:99"})
    (message,) = said  # that of the pack
    assert "submission refused: " in message
    assert "Requested node configuration is not available" in words["one"] == words["two"]


def test_a_job_that_can_never_run_ends(control, here):
    """Slurm accepts a job beyond a partition's limits, and keeps it for ever."""
    options = {"slurm_additional_parameters": {"nodes": 9}}
    _, words = control([member()], options=options)
    assert words["one"].endswith("nodes than the partition allows (PartitionNodeLimit)")
    assert here.jobs("pending") == {}


def test_a_job_that_is_held_after_its_start_failed_ends(control, here):
    marks = [here.state / f"broken.{node}" for node in here.nodes]
    for mark in marks:
        mark.touch()
    try:
        _, words = control([member()])
    finally:
        for mark in marks:
            mark.unlink()
        here.clear()
    assert words["one"] == "it is held after failed launches (launch failed requeued held)"


def test_a_job_that_slurm_does_not_know_is_unknown_without_accounting(here):
    done = subprocess.run(["sacct"], env=os.environ, capture_output=True, text=True)
    assert "accounting storage is disabled" in done.stderr
    result = schedulers.of("slurm").status({"pack-1": "99999", "pack-2": "99998"})
    assert {status.phase for status in result.values()} == {Phase.UNKNOWN}
