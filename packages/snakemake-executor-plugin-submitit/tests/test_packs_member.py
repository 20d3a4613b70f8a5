"""The process around a member: real processes, ended in every way there is."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import psutil
import pytest

from submitit_packs.directory import PackDirectory, Result, Start
from submitit_packs.member import gpu_uuids, member_environment
from submitit_packs.model import Member, Pack
from submitit_packs.overview import pack_status
from submitit_packs.pilot import accelerators
from submitit_packs.reasons import words

LONG = 60.0
LAST = f"sleep 51.{os.getpid()}"  # another test run may be under way


@pytest.fixture
def start(tmp_path):
    """Start a member's wrapper; it and what it leaves are ended with the test."""
    processes = []

    def begin(
        command,
        expected_s=1.0,
        timeout_s=LONG,
        left_s=1000.0,
        attempts=1,
        logs=(),
        **environment,
    ):
        directory = PackDirectory(tmp_path / "pack-1")
        member = Member("m", "m", command, str(tmp_path), expected_s, timeout_s, logs=logs)
        pack = Pack("pack-1", "q", 1, 1, 1, 600, (member,), margin_s=5.0, poll_s=0.3)
        directory.write_plan(pack)
        for _ in range(attempts):
            directory.begin_attempt()
        words = [str(directory.path), "m", "1", str(time.time() + left_s)]
        process = subprocess.Popen(
            [sys.executable, "-m", "submitit_packs.member", *words],
            env=os.environ
            | {"CUDA_VISIBLE_DEVICES": "", "PACK_SCRATCH": str(tmp_path)}
            | environment,
        )
        processes.append(process)
        return process, directory

    yield begin
    for process in processes:
        process.kill()
        process.wait()


def end(process, directory) -> Result:
    process.wait(LONG)
    result = directory.result("m")
    assert result is not None
    return result


def until(condition) -> None:
    limit = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


def alive(marker: str) -> list[int]:
    return [
        p.pid
        for p in psutil.process_iter(["cmdline"])
        if marker in " ".join(p.info["cmdline"] or ())
    ]


@pytest.mark.parametrize(
    ("command", "state", "code"),
    [("true", "ok", 0), ("exit 3", "failed", 3), ("kill -SEGV $$", "failed", -11)],
)
def test_how_a_command_ends_is_its_result(start, command, state, code):
    result = end(*start(command))
    assert (result.state, result.exit_code, result.attempt) == (state, code, 1)
    assert result.host == os.uname().nodename
    assert result.end_s >= result.start_s


@pytest.mark.parametrize(
    ("command", "logs", "why"),
    [
        ("echo begins; echo 'disk: no room'; echo; exit 3", (), "exit code 3: disk: no room"),
        ("echo Exiting; echo 'of the rule' >rule.log; exit 1", ("rule.log",), "exit code 1: of th"),
        ("echo Exiting; exit 1", ("never.log",), "exit code 1: Exiting"),
        ("echo a >a.log; sleep 0.1; echo b >b.log; exit 1", ("b.log", "a.log"), "exit code 1: b"),
        ("exit 1", (), "exit code 1"),
        ("printf '\\xff\\xfe'; exit 1", (), "exit code 1: "),
        ("echo fine", (), ""),
    ],
)
def test_a_failed_job_gives_its_reason_in_its_last_line(start, command, logs, why):
    process, directory = start(command, logs=logs)
    result = end(process, directory)
    assert result.why.startswith(why) if why else result.why == ""
    assert "\n" not in result.why
    assert words(result).startswith(f"{result.state}: {result.reason} (on ")
    status = overview_of(directory)
    assert status.reason == result.why


def overview_of(directory):
    (member,) = pack_status(directory, {}).members
    return member


def test_output_and_environment(start, tmp_path):
    process, directory = start(
        "env; echo lost >&2", CUDA_VISIBLE_DEVICES="2", PMI_RANK="3", SLURM_PROCID="1", PALS_X="1"
    )
    end(process, directory)
    log = directory.log("m").read_text()
    variables = dict(line.split("=", 1) for line in log.splitlines() if "=" in line)
    assert variables["CUDA_VISIBLE_DEVICES"] == "2"
    assert variables["PACK_MEMBER"] == "m"
    assert not {"PMI_RANK", "SLURM_PROCID", "PALS_X"} & variables.keys()
    assert "lost" in log
    assert not Path(variables["TMPDIR"]).exists()


def test_a_member_that_takes_too_long_is_ended(start):
    result = end(*start("trap 'echo kept' TERM; sleep 50 & wait", timeout_s=0.5))
    assert (result.state, result.reason) == ("timeout", "took more than 0 s")


def test_a_member_that_ignores_term_is_killed(start, monkeypatch):
    process, directory = start("trap '' TERM; while :; do sleep 0.1; done", timeout_s=0.5)
    result = end(process, directory)
    assert (result.state, result.exit_code) == ("timeout", -signal.SIGKILL)


def test_a_member_is_not_begun_with_too_little_time(start):
    process, directory = start("touch began", expected_s=100, left_s=90)
    result = end(process, directory)
    assert result.state == "deferred"
    assert "s were left, 100 s are expected" in result.reason
    assert directory.start("m") is None
    assert not (directory.path.parent / "began").exists()


def test_a_member_whose_packs_time_is_over_runs_again(start):
    result = end(*start("sleep 50", expected_s=-1000, left_s=6))
    assert (result.state, result.reason) == ("killed", "its pack's time was over")


@pytest.mark.parametrize("how", ["stop", "attempt"])
def test_a_member_hears_that_its_pack_ends(start, how):
    process, directory = start("sleep 50")
    until(lambda: directory.start("m"))
    if how == "stop":
        directory.stop(1, "preempted")
        result = end(process, directory)
        assert (result.state, result.reason) == ("killed", "preempted")
    else:
        directory.begin_attempt()
        process.wait(LONG)
        assert directory.result("m") is None  # the pack runs again, and this is not its writer


def test_term_ends_a_member_and_says_so(start):
    process, directory = start("trap 'echo partial > kept; exit 0' TERM; sleep 50 & wait")
    until(lambda: directory.start("m"))
    time.sleep(0.3)
    process.terminate()
    result = end(process, directory)
    assert (result.state, result.reason) == ("killed", "its pack was ended")
    assert (directory.path.parent / "kept").read_text() == "partial\n"


def test_a_member_that_dies_of_the_schedulers_signal_has_not_failed(start):
    process, directory = start("kill -TERM $$")  # before its wrapper hears of the end
    until(lambda: directory.start("m"))
    process.terminate()
    assert end(process, directory).state == "killed"


def test_a_member_that_somebody_kills_has_failed(start):
    result = end(*start("kill -KILL $$"))
    assert (result.state, result.reason) == ("failed", "killed by SIGKILL")


def test_a_member_dies_with_the_worker_that_started_it(start, tmp_path):
    process, directory = start(LAST)
    worker = f"""
import subprocess, sys
subprocess.run({[*process.args[:-3], "m", "1", process.args[-1]]!r})
"""
    process.kill()
    process.wait()
    for pid in alive(LAST):
        os.kill(pid, signal.SIGKILL)
    parent = subprocess.Popen([sys.executable, "-c", worker])
    until(lambda: alive(LAST))
    parent.kill()
    parent.wait()
    until(lambda: not alive(LAST))
    until(lambda: directory.result("m"))
    assert directory.result("m").state == "killed"


@pytest.mark.parametrize("leave", ["{} &", "setsid {} &", "(setsid {} &);"])
def test_nothing_of_a_member_outlives_it(start, leave):
    assert end(*start(f"{leave.format(LAST)} sleep 0.3")).state == "ok"
    assert alive(LAST) == []


def test_a_finished_member_does_not_run_again(start, tmp_path):
    process, directory = start("echo once >> count")
    end(process, directory)
    again = subprocess.run(process.args)
    assert again.returncode == 0
    assert (tmp_path / "count").read_text() == "once\n"


def test_a_member_is_of_the_packs_session(start):
    process, directory = start("ps -o sid= -p $$ > sid; ps -o pgid= -p $$ > pgid; echo $$ > pid")
    end(process, directory)
    place = directory.path.parent
    sid, pgid, pid = (int((place / name).read_text()) for name in ("sid", "pgid", "pid"))
    assert sid == os.getsid(0)  # PBS finds it there
    assert pgid == pid != os.getpgid(0)


def test_two_members_never_share_a_gpu(start, tmp_path):
    first, directory = start(
        "echo in >> order; sleep 1; echo out >> order", CUDA_VISIBLE_DEVICES="7"
    )
    second = subprocess.Popen(
        first.args, env=os.environ | {"CUDA_VISIBLE_DEVICES": "6,7", "PACK_SCRATCH": str(tmp_path)}
    )
    first.wait(LONG)
    second.wait(LONG)
    assert (tmp_path / "order").read_text().split() == ["in", "out"]
    assert json.loads((directory.path / "m.rc").read_text())["state"] == "ok"


@pytest.mark.parametrize(("slots", "each"), [(4, 1), (2, 2), (1, 4), (3, 0)])
def test_slots_share_no_gpu_and_leave_none_out(slots, each):
    pack = Pack("pack-1", "q", 1, slots, each, 600, ())
    gpus = [accelerators(pack)[slot].split(",") for slot in range(slots)]
    assert {len(of_slot) for of_slot in gpus} == {max(1, each)}
    assert [*chain(*gpus)] == [str(gpu) for gpu in range(slots * max(1, each))]


def test_a_member_sees_its_gpus_as_the_node_numbers_them(tmp_path, monkeypatch):
    # The worker's own are more than those of a member that needs none.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    member = Member("m", "m", "true", str(tmp_path), 1.0, 1.0)
    pack = Pack("pack-1", "q", 1, 1, 1, 600, (member,))
    for gpu in ("", "3"):
        start = Start("node", gpu, (), 0.0, 1)
        result = member_environment(PackDirectory(tmp_path), pack, member, start, "/tmp")
        assert result["CUDA_VISIBLE_DEVICES"] == gpu
        assert result["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_uuids_are_those_of_the_members_gpus(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\nfor word; do case $word in --id=*) echo "$word";; esac; done\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert gpu_uuids("1,3") == ("--id=1,3",)
