"""What disturbed a repeat, read from texts as Linux writes them below /proc."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.run import disturbance
from kvscope.run.capture import private_namespace
from kvscope.run.disturbance import (
    NOISE_TICKS,
    CpuTime,
    MachineSample,
    Process,
    compare_samples,
    entries,
    take_sample,
)
from kvscope.tables.disturbed import (
    MAXIMUM_OTHERS,
    MAXIMUM_SLOWDOWN,
    MAXIMUM_STEAL,
    MAXIMUM_WAITING,
)
from tests.conftest import Require

STAT = """cpu  100 10 20 1000 5 1 2 7 50 0
cpu0 60 5 10 500 3 1 1 4 25 0
cpu1 40 5 10 500 2 0 1 3 25 0
intr 4 5 6
"""


def process(
    number: int, session: int, user: int, system: int, name: str = "python", parent: int = 1
) -> str:
    times = f"{user} {system} 5 5"  # its own, and those of its children that have ended
    return f"{number} ({name}) R {parent} {number} {session} 0 -1 4194304 9 9 9 9 {times} 20 0"


def machine(
    proc: Path,
    processes: dict[int, tuple[str, str]],
    own: int,
    visible: Mapping[int, str] = {},
    cores: Mapping[int, str] = {},
) -> Path:
    """A /proc with these processes (their stat and command line), one of them reading it.

    `visible` has the GPUs of those whose environment can be read, `cores` masks of their cores.
    """
    for number, (stat, cmdline) in processes.items():
        place = proc / str(number)
        place.mkdir(parents=True)
        (place / "stat").write_text(stat)
        (place / "cmdline").write_text(cmdline.replace(" ", "\0") + "\0")
        (place / "status").write_text(f"Cpus_allowed:\t{cores.get(number, 'f')}\n")
        if number in visible:
            (place / "environ").write_text(f"HOME=/\0CUDA_VISIBLE_DEVICES={visible[number]}\0")
    (proc / "self").symlink_to(str(own))
    (proc / str(own) / "schedstat").write_text("7000000000 1500000000 33\n")
    (proc / str(own) / "status").write_text(
        "Name:\tpython\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t41\n"
        f"Cpus_allowed:\t{cores.get(own, 'f')}\n"
    )
    (proc / "stat").write_text(STAT)
    (proc / "loadavg").write_text("1.25 0.50 0.10 2/99 1234\n")
    (proc / "cpuinfo").write_text("cpu MHz\t\t: 2000.5\ncpu MHz\t\t: 2250.0\n")
    return proc


OWN = (process(7, 5, 30, 3), "python -m kvscope.run.session here")
PROFILER = (process(8, 5, 4, 1, name="nsys) R 1 (x"), "nsys profile python")
STRANGER = (process(9, 9, 500, 500), "vi kvscope.run.session.txt")
OTHER_RUN = (process(10, 10, 50, 50), "python -m kvscope.run.session there")


def test_a_sample_holds_what_the_texts_say(tmp_path: Path) -> None:
    proc = machine(tmp_path, {7: OWN, 8: PROFILER, 9: STRANGER}, own=7)
    found = take_sample(proc, tmp_path / "nothing")
    assert found.cpu == CpuTime(busy=133, steal=7, total=1145, cores=2)
    assert found.own_ticks == 58, "of the process, its profiler, and what they started"
    assert found.waited_s == pytest.approx(1.5)
    assert found.switches == 41
    assert found.run_queue == 1.25
    assert found.frequency_mhz == 2250
    assert not found.other_run


def test_another_measured_process_is_another_run(tmp_path: Path) -> None:
    assert take_sample(machine(tmp_path, {7: OWN, 10: OTHER_RUN}, own=7)).other_run


PACK = "/shared/packs/pack-7"
# A member beside the run: what runs it in the pack names the pack's directory.
WORKER = (process(20, 20, 1, 1), f"python worker --logdir={PACK}/parsl-1")
MEMBER = (process(21, 20, 2, 2, parent=20), f"python -m submitit_packs.member {PACK} m1 1 9")
NEIGHBOUR = (process(10, 10, 50, 50, parent=21), "python -m kvscope.run.session there")


@pytest.mark.parametrize(
    ("variables", "neighbour_ticks", "other_run"),
    [
        ({"PACK_DIRECTORY": PACK}, 12 + 14 + 110 + 13, False),
        ({"PACK_DIRECTORY": PACK, "PACK_EXCLUSIVE": "1"}, 0, True),
        ({"PACK_DIRECTORY": "/shared/packs/pack-8"}, 0, True),
        ({}, 0, True),
    ],
)
def test_a_run_of_the_same_pack_is_a_neighbour_unless_the_run_has_its_node_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    neighbour_ticks: int,
    other_run: bool,
) -> None:
    for name in ("PACK_DIRECTORY", "PACK_EXCLUSIVE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    beside = {9: STRANGER, 20: WORKER, 21: MEMBER, 10: NEIGHBOUR}
    # What runs this member is of the pack; the measured process is not its own neighbour.
    wrapper = process(22, 20, 1, 2, parent=20), f"python -m submitit_packs.member {PACK} m2 1 9"
    there = {7: (process(7, 5, 30, 3, parent=22), OWN[1]), 22: wrapper, **beside}
    found = take_sample(machine(tmp_path, there, own=7))
    assert (found.neighbour_ticks, found.other_run) == (neighbour_ticks, other_run)
    assert found.own_ticks == 43


def test_a_neighbour_that_ends_takes_no_time_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent has its time then; otherwise others would seem to have used it."""
    monkeypatch.setenv("PACK_DIRECTORY", PACK)
    monkeypatch.delenv("PACK_EXCLUSIVE", raising=False)
    there = {7: OWN, 20: WORKER, 21: MEMBER}
    before = take_sample(machine(tmp_path / "before", there | {10: NEIGHBOUR}, own=7))
    ended = MEMBER[0].replace("2 2 5 5", "2 2 60 60"), MEMBER[1]
    after = take_sample(machine(tmp_path / "after", there | {21: ended}, own=7))
    assert after.neighbour_ticks == before.neighbour_ticks


@pytest.mark.parametrize(
    ("visible", "cores", "other_run"),
    [
        ({7: "0", 10: "1"}, {}, False),  # a GPU of its own each
        ({7: "0,1", 10: "1"}, {}, True),
        ({7: "0"}, {7: "f", 10: "f0"}, True),  # of another user, whose GPUs are not known
        ({10: "1"}, {}, True),  # all GPUs that there are
        ({7: "", 10: ""}, {}, True),  # both on the CPU
        ({7: "", 10: ""}, {7: "0000000f,00000000", 10: "00000000,f0000000"}, False),
        ({7: ""}, {7: "f", 10: "f0"}, False),
        ({7: "", 10: "0"}, {}, False),  # what its host side needs shows in the use of the cores
        ({7: "0", 10: ""}, {}, False),
    ],
)
def test_another_run_counts_where_it_has_the_same_device(
    tmp_path: Path, visible: dict[int, str], cores: dict[int, str], other_run: bool
) -> None:
    there = {7: OWN, 10: OTHER_RUN}
    found = take_sample(machine(tmp_path, there, 7, visible, cores))
    assert found.other_run == other_run


def test_cpufreq_tells_the_rate_where_it_is(tmp_path: Path) -> None:
    proc = machine(tmp_path / "proc", {7: OWN}, own=7)
    for core, khz in ((0, 1_400_000), (11, 3_100_000)):
        rate = tmp_path / f"sys/cpu{core}/cpufreq/scaling_cur_freq"
        rate.parent.mkdir(parents=True)
        rate.write_text(f"{khz}\n")
    assert take_sample(proc, tmp_path / "sys").frequency_mhz == 3100


def test_a_system_that_tells_nothing_disturbs_nothing(tmp_path: Path) -> None:
    found = take_sample(tmp_path / "proc", tmp_path / "sys")
    assert found == MachineSample(time_s=found.time_s)
    (told,) = entries([(found, replace(found, time_s=found.time_s + 1))])
    assert not told["disturbed"]
    assert told["other_run"] is False
    assert {value for key, value in told.items() if key.endswith(("share", "mhz"))} == {None}


def test_this_machine_can_be_read() -> None:
    """By a process of its own, since processes of other tests may end between the samples."""
    read = "from kvscope.run.disturbance import take_sample as sample; a, b = sample(), sample()"
    shown = "print(b.time_s >= a.time_s, b.own_ticks >= a.own_ticks > 0)"
    command = [sys.executable, "-c", f"{read}; {shown}"]
    done = subprocess.run(command, start_new_session=True, check=True, stdout=subprocess.PIPE)
    assert done.stdout.split() == [b"True", b"True"]


# Ten seconds of a machine with two cores, 100 ticks a second; the run used one of them.
BEFORE = MachineSample(
    time_s=100.0, cpu=CpuTime(5000, 50, 90_000, 2), own_ticks=700, waited_s=3.0, switches=5
)


def after(
    others: int = 0,
    steal: int = 0,
    waited_s: float = 0.0,
    other_run: bool = False,
    neighbours: int = 0,
) -> MachineSample:
    """Ten seconds later: ticks that others used and the hypervisor took, and the rest."""
    return MachineSample(
        time_s=110.0,
        cpu=CpuTime(6000 + others + neighbours, 50 + steal, 92_000, 2),
        neighbour_ticks=neighbours,
        own_ticks=1700,
        waited_s=3.0 + waited_s,
        switches=9,
        other_run=other_run,
    )


@pytest.mark.parametrize(
    ("sample_after", "why"),
    [
        (after(), ""),
        (after(others=int(MAXIMUM_OTHERS * 2000), steal=int(MAXIMUM_STEAL * 2000)), ""),
        (after(waited_s=0.9 * MAXIMUM_WAITING * 10), ""),
        (after(others=905), "other processes used 0.9 of 2 CPUs"),
        (after(steal=185), "the hypervisor took 9% of the CPU time"),
        (after(waited_s=1.2), "the run waited for a CPU for 12% of its time"),
        (after(other_run=True), "another run was measured at the same time"),
        (
            after(others=905, waited_s=1.2),
            "other processes used 0.9 of 2 CPUs, the run waited for a CPU for 12% of its time",
        ),
    ],
)
def test_a_repeat_is_disturbed_beyond_a_share_and_it_says_by_what(
    sample_after: MachineSample, why: str
) -> None:
    (found,) = entries([(BEFORE, sample_after)])
    assert found["why"] == why
    assert found["disturbed"] == bool(why)
    assert found["involuntary_switches"] == 4


@pytest.mark.parametrize(
    ("sample_after", "why", "shared"),
    [
        (after(neighbours=905), "", "its pack's other members used 0.9 of 2 CPUs"),
        (
            after(neighbours=905, waited_s=4.0),
            "",
            "its pack's other members used 0.9 of 2 CPUs, beside them the run waited for a CPU "
            "for 40% of its time",
        ),
        # Of two that may have had the CPU, the one that used more of it.
        (
            after(neighbours=205, others=155, waited_s=1.2),
            "",
            "beside them the run waited for a CPU for 12% of its time",
        ),
        (
            after(neighbours=155, others=165, waited_s=1.2),
            "the run waited for a CPU for 12% of its time",
            "",
        ),
        # Neighbours that hardly ran are no excuse.
        (after(neighbours=15, waited_s=1.2), "the run waited for a CPU for 12% of its time", ""),
        (
            after(neighbours=905, others=905),
            "other processes used 0.9 of 2 CPUs",
            "its pack's other members used 0.9 of 2 CPUs",
        ),
    ],
)
def test_what_neighbours_use_is_recorded_and_disturbs_nothing(
    sample_after: MachineSample, why: str, shared: str
) -> None:
    (found,) = entries([(BEFORE, sample_after)])
    assert (found["why"], found["shared"]) == (why, shared)
    assert found["disturbed"] == bool(why)


@given(st.integers(0, 1000), st.integers(0, 1000), st.floats(0, 10))
def test_neighbours_cost_what_strangers_would(one: int, other: int, waited_s: float) -> None:
    """Every share is either the neighbours' or the strangers', and never lost."""
    (together,) = entries([(BEFORE, after(one + other, 0, waited_s))])
    (apart,) = entries([(BEFORE, after(one, 0, waited_s, neighbours=other))])
    assert apart["waiting_share"] == together["waiting_share"]
    sums = apart["other_cpu_share"] + apart["neighbour_cpu_share"]
    assert sums == pytest.approx(together["other_cpu_share"], abs=NOISE_TICKS / 2000 + 1e-9)
    assert not apart["disturbed"] or together["disturbed"]


def test_a_slow_machine_is_the_neighbours_while_they_run() -> None:
    quiet = (replace(BEFORE, work_s=0.006), replace(after(), work_s=0.006))
    beside = (replace(BEFORE, work_s=0.012), replace(after(neighbours=905), work_s=0.012))
    _, found = entries([quiet, beside])
    assert not found["disturbed"]
    assert "beside them the same work took 100% longer than around" in found["shared"]


def test_another_run_that_ended_meanwhile_counts() -> None:
    assert compare_samples(replace(BEFORE, other_run=True), after())["other_run"]


def test_the_runs_own_work_is_no_disturbance() -> None:
    """Both cores busy all the time, by the run itself."""
    busy = replace(after(), cpu=CpuTime(7000, 50, 92_000, 2), own_ticks=2700)
    assert compare_samples(BEFORE, busy)["other_cpu_share"] == 0


@given(st.integers(-NOISE_TICKS, NOISE_TICKS), st.integers(1, 20))
def test_ticks_that_are_counted_in_two_ways_do_not_disturb_a_short_repeat(
    apart: int, own: int
) -> None:
    short = replace(
        BEFORE,
        time_s=100.1,
        cpu=CpuTime(5000 + own + apart, 50, 90_020, 2),
        own_ticks=700 + own,
    )
    (found,) = entries([(BEFORE, short)])
    assert not found["disturbed"]


@given(st.integers(0, 1000), st.integers(0, 200), st.floats(0, 10))
def test_shares_are_shares(others: int, steal: int, waited_s: float) -> None:
    found = compare_samples(BEFORE, after(others, steal, waited_s))
    for key in ("steal_share", "other_cpu_share", "waiting_share"):
        assert 0 <= found[key] <= 1


def works(*times_s: float | None) -> list[tuple[MachineSample, MachineSample]]:
    """Repeats around which the same work took these times."""
    return [(replace(BEFORE, work_s=t), replace(after(), work_s=t)) for t in times_s]


def test_a_repeat_is_disturbed_if_the_machine_was_slower_than_around_another() -> None:
    first = works(0.010, 0.010)
    assert not any(entry["disturbed"] for entry in entries(first))
    found = entries([*first, *works(0.006, 0.006 * (1 + 0.9 * MAXIMUM_SLOWDOWN), 0.0061)])
    assert [entry["disturbed"] for entry in found] == [True, True, False, False, False]
    assert found[0]["why"] == "the same work took 67% longer than around another repeat"
    assert [entry["repeat"] for entry in found] == [0, 1, 2, 3, 4]


def test_a_change_within_a_repeat_counts_by_half() -> None:
    change = (replace(BEFORE, work_s=0.006), replace(after(), work_s=0.015))
    (_, found) = entries([*works(0.006), change])
    assert found["work_s"] == pytest.approx(0.0105)
    assert found["disturbed"]


def test_where_the_speed_is_not_known_it_disturbs_nothing() -> None:
    assert not any(entry["disturbed"] for entry in entries(works(None, None)))


def test_the_work_takes_time() -> None:
    assert 0 < disturbance.reference_work_s() < 10


def test_the_thresholds_let_an_idle_machine_pass() -> None:
    """A machine's own services take about 1 % of it."""
    assert 0.01 < MAXIMUM_OTHERS < 0.25
    assert 0.04 < MAXIMUM_STEAL < 0.1
    assert 0.005 < MAXIMUM_WAITING < 0.05
    assert 0.3 < MAXIMUM_SLOWDOWN < 1


def test_a_profiler_above_the_measured_process_is_of_the_run() -> None:
    """Its command line has that of the process it starts, which it gives a session of its own.

    It starts that by one which has ended.
    """
    profiler, own, agent = Process(7, 7, 0, 1), Process(9, 9, 0, 1), Process(11, 11, 0, 7)
    everyone = [Process(1, 1, 0), profiler, own, agent, Process(20, 20, 0, 1)]
    measured = "python\0-m\0kvscope.run.session\0/here\0--annotate\0"
    other = measured.replace("here", "there")
    commands = {1: "init\0", 7: f"nsys\0{measured}", 9: measured, 11: "", 20: other}
    assert disturbance.run_of(own, everyone, commands) == {7, 9, 11}


def test_the_machine_is_seen_from_a_process_namespace() -> None:
    with disturbance.open_proc() as (descriptor,):
        found = take_sample(Path(f"/proc/self/fd/{descriptor}"))
    assert found.cpu is not None
    assert found.own_ticks > 0


# Two members of a pack: one is a busy measured process, the other looks at the machine. It is run
# where no other process is seen.
SHARED = """
import json, subprocess, sys, time
from pathlib import Path
from submitit_packs.directory import PackDirectory
from submitit_packs.model import Member, Pack

LOOK = '''
import json, time
from kvscope.run.disturbance import compare_samples, take_sample
before, found = take_sample(), {}
while not (found.get("neighbour_cpu_share") or found.get("other_run")):
    time.sleep(0.5)
    found = compare_samples(before, take_sample())
print(json.dumps(found))
'''
root, leave = Path(sys.argv[1]), sys.argv[2]
python = f"exec {sys.executable} -c"
# The first starts another process now and then, which ends: its time is not lost.
spin = "import os; [os.system('sleep 0.01') or sum(range(10**6)) for _ in iter(int, 1)]"
members = (
    Member("busy", "busy", f'{python} "{spin}" kvscope.run.session there', "/", 1, 60),
    Member("looks", "looks", f"{leave} setsid --wait {python[5:]} '{LOOK}'", "/", 1, 60),
)
directory = PackDirectory(root / "pack-1")
directory.write_plan(Pack("pack-1", "q", 1, 2, 1, 600, members, margin_s=1.0, poll_s=0.3))
words = [sys.executable, "-m", "submitit_packs.member", str(directory.path)]
end = str(time.time() + 100)
directory.begin_attempt()
busy = subprocess.Popen([*words, "busy", "1", end])
while not directory.start("busy"):
    time.sleep(0.05)
time.sleep(0.3)
subprocess.run([*words, "looks", "1", end], check=True)
print(directory.log("looks").read_text())
busy.terminate()
busy.wait()
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("leaves", "is_neighbour"), [("", True), ("env -u PACK_DIRECTORY", False)])
def test_a_member_of_a_pack_knows_the_others_by_what_the_pack_starts(
    tmp_path: Path, require: Require, leaves: str, is_neighbour: bool
) -> None:
    apart = private_namespace()
    require("process namespaces", bool(apart), "the system allows none to this user")
    done = subprocess.run(
        [*apart, sys.executable, "-c", SHARED, str(tmp_path), leaves],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["other_run"] != is_neighbour
    assert bool(found["neighbour_cpu_share"]) == is_neighbour
