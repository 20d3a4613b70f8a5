"""What disturbed a repeat, read from texts as Linux writes them below /proc."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.run import disturbance
from kvscope.run.disturbance import (
    MAXIMUM_OTHERS,
    MAXIMUM_SLOWDOWN,
    MAXIMUM_STEAL,
    MAXIMUM_WAITING,
    NOISE_TICKS,
    CpuTime,
    MachineSample,
    Process,
    compare_samples,
    judge_repeats,
    take_sample,
)

STAT = """cpu  100 10 20 1000 5 1 2 7 50 0
cpu0 60 5 10 500 3 1 1 4 25 0
cpu1 40 5 10 500 2 0 1 3 25 0
intr 4 5 6
"""


def process(number: int, session: int, user: int, system: int, name: str = "python") -> str:
    return f"{number} ({name}) R 1 {number} {session} 0 -1 4194304 9 9 9 9 {user} {system} 5 5 20 0"


def machine(proc: Path, processes: dict[int, tuple[str, str]], own: int) -> Path:
    """A /proc with these processes (their stat and command line), one of them reading it."""
    for number, (stat, cmdline) in processes.items():
        (proc / str(number)).mkdir(parents=True)
        (proc / str(number) / "stat").write_text(stat)
        (proc / str(number) / "cmdline").write_text(cmdline.replace(" ", "\0") + "\0")
    (proc / "self").symlink_to(str(own))
    (proc / str(own) / "schedstat").write_text("7000000000 1500000000 33\n")
    (proc / str(own) / "status").write_text(
        "Name:\tpython\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t41\n"
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
    assert found.own_ticks == 38, "of the session: the process and its profiler"
    assert found.waited_s == pytest.approx(1.5)
    assert found.switches == 41
    assert found.run_queue == 1.25
    assert found.frequency_mhz == 2250
    assert not found.other_run


def test_another_measured_process_is_another_run(tmp_path: Path) -> None:
    assert take_sample(machine(tmp_path, {7: OWN, 10: OTHER_RUN}, own=7)).other_run


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
    (told,) = judge_repeats([(found, replace(found, time_s=found.time_s + 1))])
    assert not told["disturbed"]
    assert told["other_run"] is False
    assert {value for key, value in told.items() if key.endswith(("share", "mhz"))} == {None}


def test_this_machine_can_be_read() -> None:
    before, after = take_sample(), take_sample()
    assert after.time_s >= before.time_s
    assert after.own_ticks >= before.own_ticks


# Ten seconds of a machine with two cores, 100 ticks a second; the run used one of them.
BEFORE = MachineSample(
    time_s=100.0, cpu=CpuTime(5000, 50, 90_000, 2), own_ticks=700, waited_s=3.0, switches=5
)


def after(
    others: int = 0, steal: int = 0, waited_s: float = 0.0, other_run: bool = False
) -> MachineSample:
    """Ten seconds later: ticks that others used and the hypervisor took, and the rest."""
    return MachineSample(
        time_s=110.0,
        cpu=CpuTime(6000 + others, 50 + steal, 92_000, 2),
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
    (found,) = judge_repeats([(BEFORE, sample_after)])
    assert found["why"] == why
    assert found["disturbed"] == bool(why)
    assert found["involuntary_switches"] == 4


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
    (found,) = judge_repeats([(BEFORE, short)])
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
    assert not any(entry["disturbed"] for entry in judge_repeats(first))
    found = judge_repeats([*first, *works(0.006, 0.006 * (1 + 0.9 * MAXIMUM_SLOWDOWN), 0.0061)])
    assert [entry["disturbed"] for entry in found] == [True, True, False, False, False]
    assert found[0]["why"] == "the same work took 67% longer than around another repeat"
    assert [entry["repeat"] for entry in found] == [0, 1, 2, 3, 4]


def test_a_change_within_a_repeat_counts_by_half() -> None:
    change = (replace(BEFORE, work_s=0.006), replace(after(), work_s=0.015))
    (_, found) = judge_repeats([*works(0.006), change])
    assert found["work_s"] == pytest.approx(0.0105)
    assert found["disturbed"]


def test_where_the_speed_is_not_known_it_disturbs_nothing() -> None:
    assert not any(entry["disturbed"] for entry in judge_repeats(works(None, None)))


def test_the_work_takes_time() -> None:
    assert 0 < disturbance.reference_work_s() < 10


def test_the_thresholds_let_an_idle_machine_pass() -> None:
    """A machine's own services take about 1 % of it."""
    assert 0.01 < disturbance.MAXIMUM_OTHERS < 0.25
    assert 0.04 < disturbance.MAXIMUM_STEAL < 0.1
    assert 0.005 < disturbance.MAXIMUM_WAITING < 0.05
    assert 0.3 < disturbance.MAXIMUM_SLOWDOWN < 1


def test_a_profiler_above_the_measured_process_is_no_other_run() -> None:
    """Its command line has that of the process it starts, which it gives a session of its own."""
    profiler, own, other = Process(7, 7, 0, 1), Process(9, 9, 0, 7), Process(20, 20, 0, 1)
    assert disturbance.ancestor_sessions(own, [profiler, own, other]) == {7, 9}
