"""`kvscope watch`: what it says of a recording whose server is idle or gone, and where."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kvscope.cli import main as cli
from kvscope_record.glance import Watcher, look
from kvscope_record.options import RecordOptions
from kvscope_record.records import Scheduled, Segment
from kvscope_record.segments import segment_paths
from kvscope_record.writer import Writer

SECOND_NS = 10**9


def record(directory: Path, age_s: float) -> None:
    """A recording whose newest pass is that old, of a server that started a minute before."""
    directory.mkdir(parents=True, exist_ok=True)
    now_ns = 70 * SECOND_NS + int(age_s * SECOND_NS)
    began_utc_ns = time.time_ns() - now_ns
    facts = {"recording": "abc", "kv_blocks_total": 12}
    writer = Writer(RecordOptions(directory))
    writer.put(Segment(facts, 0, 10 * SECOND_NS, began_utc_ns + 10 * SECOND_NS, 0, 0))
    ended_ns = 70 * SECOND_NS
    writer.put(Scheduled(0, ended_ns - 5, ended_ns, 3, 8, 0, [], [0], [4], [0], [], [], []))
    writer.close()


def once(directory: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = cli.main(["watch", str(directory), "--once"])
    out, err = capsys.readouterr()
    return code, out + err


def test_a_pass_of_now_is_told_without_its_age(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    record(tmp_path, age_s=-600)  # a clock that was set back makes it no older
    assert once(tmp_path, capsys)[1].startswith("4/12 blocks (33%) · 1 running · 3 waiting · ")


def test_the_numbers_of_an_idle_server_are_those_of_an_earlier_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    record(tmp_path, age_s=7200)
    _, line = once(tmp_path, capsys)
    ago, numbers = line.split(" s ago: ")
    assert int(ago.replace(",", "")) >= 7200
    assert numbers.startswith("4/12 blocks (33%) · 1 running")


def test_the_directories_of_ranks_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for rank in ("rank0", "rank1"):
        record(tmp_path / rank, age_s=0)
    assert segment_paths(tmp_path / "rank0")
    code, sentence = once(tmp_path, capsys)
    assert code == 2
    assert sentence.endswith("it has one for each rank: rank0, rank1\n")


def test_in_a_narrow_terminal_it_stays_one_line_until_ctrl_c(tmp_path: Path):
    record(tmp_path, age_s=100)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    words = [sys.executable, "-m", "kvscope.cli", "watch", str(tmp_path), "--every", "0.1"]
    environment = {name: os.environ[name] for name in os.environ if name != "COLUMNS"}
    watching = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, process_group=0
    )
    os.close(theirs)
    shown = b""
    while shown.count(b"ago") < 3:
        shown += os.read(ours, 4096)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(60) == 0
    os.close(ours)
    lines = [line.removeprefix("\x1b[K") for line in shown.decode().split("\r")]
    assert all(len(line) < 40 for line in lines), lines
    assert any("s ago: blocks 33% · run 1" in line for line in lines)


def test_eighty_columns_have_every_number(tmp_path: Path):
    record(tmp_path, age_s=0)
    glance = look(tmp_path)
    assert glance is not None
    busy = replace(
        glance, running=128, waiting=40, preemptions=70, hit_tokens=26, looked_up_tokens=100,
        tokens=230_400, window_s=60.0, age_s=0.0,
    )  # fmt: skip
    assert busy.fitting(79) == (
        "blocks 33% · run 128 · wait 40 · preempted 70/min · cached 26% · tokens 3840/s"
    )
    assert "4/12 blocks" in busy.fitting(200)


def test_a_look_reads_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    record(tmp_path, age_s=0)
    watcher = Watcher(tmp_path)
    first = watcher.look()
    assert first is not None
    offsets = list[int]()

    def none(_: Path, offset: int) -> tuple[()]:
        offsets.append(offset)
        return ()

    monkeypatch.setattr("kvscope_record.glance.frames", none)
    assert watcher.look() is not None
    assert offsets == [segment_paths(tmp_path)[-1].stat().st_size]
