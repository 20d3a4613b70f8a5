"""A recording's files: bounded, readable whatever happened to the process, and without content."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard

from kvscope.base.errors import BadInput
from kvscope.cli import main as cli
from kvscope.collect.foreign import Stretch
from kvscope.tables.kv_plan import KvGroup
from kvscope_record import lock, plugin
from kvscope_record.options import LEAST_BYTES, RecordOptions, minutes, size
from kvscope_record.records import (
    KINDS,
    Arrival,
    Closed,
    Ended,
    Event,
    Sampled,
    Scheduled,
    Segment,
    decode,
)
from kvscope_record.segments import (
    SegmentWriter,
    read_segment,
    remove_oldest,
    segment_paths,
)
from kvscope_record.window import Window, read_window
from kvscope_record.writer import MOST_WAITING, Writer

GROUP = asdict(KvGroup("FullAttention", 2, 16, 4096, 4096, 4096))
FACTS = {"recording": "abc", "block_size": 16, "kv_groups": [GROUP], "prefix_caching": True}
HASHES = [b"a" * 32, b"b" * 32]


def segment(number: int = 0, step: int = 0, dropped: int = 0, recording: str = "abc") -> Segment:
    return Segment(FACTS | {"recording": recording}, number, 1, 2, step, dropped)


def scheduled(step: int) -> Scheduled:
    requests = list(range(40))
    return Scheduled(
        step, step, step + 1, 0, 5, 0, [], requests, requests, requests, [], [], [], []
    )


def written(directory: Path, *events: Event) -> list[Event]:
    """Events read back after a writer was given them, without the one that closes a session."""
    writer = Writer(RecordOptions(directory))
    for event in events:
        writer.put(event)
    writer.close()
    result = [event for path in segment_paths(directory) for event in read_segment(path)]
    assert isinstance(result.pop(), Closed)
    return [event for event in result if not isinstance(event, Closed)]


def test_what_is_written_is_read_back(tmp_path: Path):
    events = (segment(), scheduled(0), Sampled(0, 3, 4, [1, 2], [1, 3], [[2, 2]]))
    assert written(tmp_path, *events) == list(events)


def test_every_kind_of_record_is_told_apart():
    for kind, made in KINDS.items():
        assert type(decode([kind, *range(len(made._fields) - 1)])) is made
    assert decode(["of a later version", 1]) is None


def test_hashes_are_equal_within_a_recording_only(tmp_path: Path):
    arrivals = [Arrival(n, 0, 32, 1, HASHES) for n in range(2)]  # type: ignore[arg-type]
    results = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        _, first, second = written(tmp_path / name, segment(), *arrivals)
        assert isinstance(first, Arrival)
        assert isinstance(second, Arrival)
        assert first.hashes == second.hashes
        assert len(set(first.hashes)) == 2
        results.append(set(first.hashes))
    assert not results[0] & results[1]
    assert not any(raw.hex()[:16] in results[0] for raw in HASHES)


@pytest.mark.parametrize("left", [0, 1, 20, 150, -1])
def test_a_file_that_was_cut_is_read_up_to_the_cut(tmp_path: Path, left: int):
    file = SegmentWriter(tmp_path, 1)
    events: list[Event] = [segment(), *map(scheduled, range(50))]
    for event in events:
        file.write(event)
        file.flush()
    file.abandon()
    content = file.path.read_bytes()
    file.path.write_bytes(content[:left])
    result = list(read_segment(file.path))
    assert result == events[: len(result)]
    assert len(result) >= (49 if left == -1 else 0)


def test_a_damaged_file_is_named(tmp_path: Path):
    path = tmp_path / "segment-00000001.jsonl.zst"
    path.write_bytes(b"no segment at all")
    with pytest.raises(BadInput, match=path.name):
        read_window(tmp_path)


def test_a_recording_of_an_earlier_version_is_refused(tmp_path: Path):
    path = tmp_path / "segment-00000001.jsonl.zst"
    path.write_bytes(zstandard.compress(b'["segment"]'))
    with pytest.raises(BadInput, match="collect it with the version that recorded it"):
        read_window(tmp_path)


def test_no_flipped_bit_of_a_segment_that_was_ended_makes_other_records(tmp_path: Path):
    file = SegmentWriter(tmp_path, 1)
    steps = (random.Random(n).randrange(10**9) for n in range(20))
    events: list[Event] = [segment(), *map(scheduled, steps)]
    for event in events:
        file.write(event)
    file.close()
    content = file.path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1
        file.path.write_bytes(damaged)
        assert list(read_segment(file.path)) == []  # all are in the same frame


WRITES = """
import sys, time
from pathlib import Path
from kvscope_record.options import RecordOptions
from kvscope_record.writer import Writer
from test_record_files import scheduled, segment
writer = Writer(RecordOptions(Path(sys.argv[1])))
writer.put(segment())
for step in range(10**6):
    writer.put(scheduled(step))
    print(step, time.monotonic(), flush=True)
    time.sleep(0.01)
"""


def test_a_killed_process_loses_a_second_at_most(tmp_path: Path):
    command = [sys.executable, "-c", WRITES, str(tmp_path)]
    here = Path(__file__).parent
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=here)
    assert process.stdout
    put = {}
    for line in process.stdout:
        step, at = line.split()
        put[int(step)] = float(at)
        if len(put) == 200:
            break
    killed = time.monotonic()
    process.send_signal(signal.SIGKILL)
    for line in process.stdout:
        step, at = line.split()
        put[int(step)] = float(at)
    process.wait()
    read = {e.step for e in read_segment(*segment_paths(tmp_path)) if isinstance(e, Scheduled)}
    assert {step for step, at in put.items() if at < killed - 1} <= read


ENDS = """
import signal, sys, time
from pathlib import Path
from kvscope_record.ending import at_end
from kvscope_record.options import RecordOptions
from kvscope_record.writer import Writer
from test_record_files import put_passes, segment
if len(sys.argv) > 2:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
writer = Writer(RecordOptions(Path(sys.argv[1])))
at_end(writer.close)
writer.put(segment())
put_passes(writer, 0)
while not any(path.stat().st_size for path in Path(sys.argv[1]).glob("segment-*")):
    time.sleep(0.01)
put_passes(writer, 1, 2, 3)
print("put", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("handled", [True, False])
def test_a_signal_that_ends_a_server_closes_its_session(
    tmp_path: Path, number: signal.Signals, handled: bool
):
    words = [sys.executable, "-c", ENDS, str(tmp_path), *([] if handled else ["default"])]
    here = Path(__file__).parent
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=here
    )
    assert process.stdout
    assert process.stdout.readline() == "put\n"
    process.send_signal(number)
    assert process.wait(60) in (-number, 130)
    window = read_window(tmp_path)
    assert steps_of(window) == [0, 1, 2, 3]
    assert window.notes == []


def test_a_session_whose_server_was_killed_is_named(tmp_path: Path):
    words = [sys.executable, "-c", ENDS, str(tmp_path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    assert process.stdout
    assert process.stdout.readline() == "put\n"
    process.kill()
    process.wait()
    written(tmp_path, segment(0, recording="def"), scheduled(7))
    assert read_window(tmp_path).notes == [
        "session 2 of the directory is shown; --session chooses 1",
        "session 1 was not closed: its server was killed or crashed, or the disk was full",
    ]


def test_a_server_that_loads_the_plugin_imports_nothing_heavy():
    program = "import sys, kvscope_record.plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = {*done.stdout.split()}
    assert "kvscope_record.writer" in loaded
    assert not {"numpy", "pandas", "pyarrow", "pydantic", "torch", "vllm"} & loaded


def test_files_are_bounded_and_the_newest_stays(tmp_path: Path):
    for number in range(1, 9):
        (tmp_path / f"segment-{number:08d}.jsonl.zst").write_bytes(bytes(100))
    remove_oldest(tmp_path, 350, None)
    assert [path.name[8:16] for path in segment_paths(tmp_path)] == [
        "00000006",
        "00000007",
        "00000008",
    ]
    remove_oldest(tmp_path, 1, None)
    assert [path.name[8:16] for path in segment_paths(tmp_path)] == ["00000008"]


def test_files_stay_within_the_kept_size_while_one_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("kvscope_record.writer._PERIOD_S", 0.005)
    draw, sizes, files = random.Random(0), [], set()
    writer = Writer(RecordOptions(tmp_path, LEAST_BYTES))
    for burst in range(200):
        if burst % 30 == 0:  # they are larger than the writer asks for
            writer.put(segment(burst))
        newest = newest_file(tmp_path)
        for number in range(10):
            hashes = [draw.randbytes(32) for _ in range(100)]
            writer.put(Arrival(number, 0, 1600, 1, hashes))  # type: ignore[arg-type]
        while newest_file(tmp_path) == newest:
            time.sleep(0.002)
        files |= set(segment_paths(tmp_path))
        sizes.append(sum(path.stat().st_size for path in segment_paths(tmp_path)))
    writer.close()
    assert max(sizes) <= LEAST_BYTES
    assert max(sizes) > LEAST_BYTES // 2
    assert len(files) > len(segment_paths(tmp_path)), "no file had to be removed"


def newest_file(directory: Path) -> tuple[Path, int] | None:
    """The newest segment and its size."""
    paths = segment_paths(directory)
    return (paths[-1], paths[-1].stat().st_size) if paths else None


def test_old_files_are_removed(tmp_path: Path):
    for number, age_s in ((1, 300), (2, 90), (3, 0)):
        path = tmp_path / f"segment-{number:08d}.jsonl.zst"
        path.write_bytes(b"")
        os.utime(path, (time.time() - age_s,) * 2)
    remove_oldest(tmp_path, 10**9, minutes=2)
    assert [path.name[8:16] for path in segment_paths(tmp_path)] == ["00000002", "00000003"]


def test_once_a_full_disk_has_room_recording_goes_on_and_the_gap_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    disk = {"full": False}
    append = SegmentWriter._append

    def _append(segment: SegmentWriter, data: bytes) -> None:
        if disk["full"]:
            segment._file.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(segment, data)

    monkeypatch.setattr(SegmentWriter, "_append", _append)
    monkeypatch.setattr(Writer, "_has_room", lambda _: not disk["full"])
    monkeypatch.setattr("kvscope_record.writer._RETRY_S", 0.0)
    monkeypatch.setattr("kvscope_record.writer._PERIOD_S", 0.01)
    monkeypatch.setattr("logging.Logger.propagate", True, raising=False)
    writer = Writer(RecordOptions(tmp_path))
    writer.put(segment())
    put_passes(writer, 0)
    while not newest_file(tmp_path) or not newest_file(tmp_path)[1]:  # type: ignore[index]
        time.sleep(0.01)
    disk["full"], writer.wants_segment = True, False
    put_passes(writer, 1)
    while not writer.full:
        time.sleep(0.01)
    disk["full"] = False
    wait_until_asked_for_a_segment(writer)
    writer.put(segment(1, step=2))
    put_passes(writer, 2)
    writer.close()
    full, again = (record.getMessage() for record in caplog.records)
    assert full.endswith(
        "nothing into {} until there is room: {}".format(tmp_path, "No space left on device")
    )
    assert again.startswith(f"kvscope records again into {tmp_path}, after ")
    window = read_window(tmp_path)
    assert steps_of(window) == [0, 2]
    assert [(gap.first_step, gap.next_step) for gap in window.gaps] == [(1, 2)]
    assert any("pass 1 is missing" in note and "disk was full" in note for note in window.notes)


def put_passes(writer: Writer, *steps: int) -> None:
    for step in steps:
        writer.put(scheduled(step))
        writer.put(Sampled(step, step, step + 1, [0], [1]))


def steps_of(window: Window) -> list[int]:
    return [event.step for event in window.events if isinstance(event, Scheduled)]


def wait_until_asked_for_a_segment(writer: Writer) -> None:
    writer.wants_segment = False
    while not writer.wants_segment:
        assert writer.open
        time.sleep(0.01)


def test_a_file_may_vanish_while_old_files_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    written(tmp_path, segment(), scheduled(0))
    (kept,) = segment_paths(tmp_path)
    gone = tmp_path / "events-00000000.jsonl.zst"
    monkeypatch.setattr("kvscope_record.segments.segment_paths", lambda _: [gone, kept])
    remove_oldest(tmp_path, 0, None)
    assert kept.exists()


def test_a_file_that_somebody_removed_is_followed_by_another(tmp_path: Path):
    writer = Writer(RecordOptions(tmp_path))
    writer.put(segment())
    while not segment_paths(tmp_path):
        time.sleep(0.01)
    segment_paths(tmp_path)[0].unlink()
    wait_until_asked_for_a_segment(writer)
    writer.put(segment(1))
    writer.put(scheduled(5))
    writer.close()
    assert steps_of(read_window(tmp_path)) == [5]


def test_a_directory_that_somebody_removed_ends_the_recording_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("logging.Logger.propagate", True, raising=False)
    place = tmp_path / "recording"
    place.mkdir()
    writer = Writer(RecordOptions(place))
    writer.put(segment())
    while not segment_paths(place):
        time.sleep(0.01)
    shutil.rmtree(place)
    wait_until_asked_for_a_segment(writer)
    writer.put(segment(1))
    while writer.open:
        time.sleep(0.01)
    assert [record.getMessage() for record in caplog.records] == [
        f"kvscope records no longer into {place}: No such file or directory"
    ]


def test_a_disk_that_is_full_at_the_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(plugin, "facts_of", lambda *_: FACTS)
    monkeypatch.setattr("logging.Logger.propagate", True, raising=False)
    monkeypatch.setenv("KVSCOPE_RECORD", str(tmp_path))
    one = SimpleNamespace(data_parallel_size=1, data_parallel_index=0)
    plugin.begin(SimpleNamespace(vllm_config=SimpleNamespace(parallel_config=one)), "0.32.0")
    assert [record.getMessage() for record in caplog.records] == [
        f"kvscope records nothing: {tmp_path}: No space left on device"
    ]


def test_the_engine_never_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SegmentWriter, "_append", lambda *_: time.sleep(30))
    writer = Writer(RecordOptions(tmp_path))
    writer.put(segment())
    for step in range(MOST_WAITING + 10):
        if writer.full:
            break
        writer.put(scheduled(step))
    assert writer.full or not writer.caught_up


def test_dropped_records_are_a_gap(tmp_path: Path):
    written(tmp_path, segment(0), scheduled(0), segment(1, 4, dropped=3), scheduled(4))
    window = read_window(tmp_path)
    assert steps_of(window) == [0, 4]
    assert any("passes 1 to 3 are missing: 3 record(s) were dropped" in n for n in window.notes)


def test_segments_that_follow_one_another_are_one_window(tmp_path: Path):
    written(tmp_path, segment(0), scheduled(0), segment(1, 1), scheduled(1))
    window = read_window(tmp_path)
    assert steps_of(window) == [0, 1]
    assert window.notes == []


def test_the_newest_of_several_servers_is_read(tmp_path: Path):
    written(tmp_path, segment(0), scheduled(0))
    written(tmp_path, segment(0, recording="def"), scheduled(7))
    window = read_window(tmp_path)
    assert steps_of(window) == [7]
    assert window.session == 2
    assert window.notes == ["session 2 of the directory is shown; --session chooses 1"]
    assert steps_of(read_window(tmp_path, Stretch(session=1))) == [0]


CLAIMS = """
import sys, time
from pathlib import Path
from kvscope_record.lock import claim
claim(Path(sys.argv[1])); print("claimed", flush=True); time.sleep(60)
"""


@pytest.mark.parametrize("command", ["analyse", "check", "explain", "report"])
def test_what_reads_a_run_says_that_a_recording_is_to_be_collected(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
):
    written(tmp_path, segment(), scheduled(0))
    assert cli.main([command, str(tmp_path)]) == 2
    assert f"kvscope collect {tmp_path}" in capsys.readouterr().err


def test_a_directory_is_one_living_server_s(tmp_path: Path):
    command = [sys.executable, "-c", CLAIMS, str(tmp_path)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert other.stdout
    assert other.stdout.readline() == "claimed\n"
    with pytest.raises(BadInput, match=f"process {other.pid} records there"):
        lock.claim(tmp_path)
    assert str(other.pid) in str(lock.problem(tmp_path))
    other.kill()
    other.wait()
    assert lock.problem(tmp_path) is None
    lock.claim(tmp_path)


@pytest.mark.parametrize(("text", "found"), [("2GiB", 2 << 30), ("1.5 MiB", 3 << 19)])
def test_sizes(text: str, found: int):
    assert size(text, "--keep") == found


@pytest.mark.parametrize("text", ["", "2KB", "-1GiB", "nan", "10", "1e5", "٣GiB"])
def test_other_sizes_are_refused(text: str):
    with pytest.raises(BadInput, match="--keep"):
        size(text, "--keep")


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "soon"])
def test_other_minutes_are_refused(text: str):
    with pytest.raises(BadInput, match="--minutes"):
        minutes(text, "--minutes")


def test_options_reach_the_server_s_processes(tmp_path: Path):
    asked = RecordOptions(tmp_path, 5 << 20, 3.5)
    given = asked.environment({"VLLM_PLUGINS": "mine", "KVSCOPE_RECORD_MINUTES": "9"})
    assert RecordOptions.of_environment(given) == asked
    assert given["VLLM_PLUGINS"] == "mine,kvscope_record"
    assert RecordOptions.of_environment({}) is None


def test_records_of_earlier_versions_lack_their_last_fields():
    ended = decode(["ended", 3, 17, "FINISHED_STOPPED", 0, 5])
    assert isinstance(ended, Ended)
    assert ended.hashes == ()
    with pytest.raises(ValueError, match="a record ended of 5 items"):
        decode(["ended", 3, 17, "FINISHED_STOPPED", 0])
