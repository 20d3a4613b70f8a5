"""Stretches of a long recording: what is chosen, and what is said of it."""

import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from kvscope.base.errors import BadInput
from kvscope.cli.main import main
from kvscope.collect.foreign import Stretch
from kvscope_record.records import Arrival, Scheduled
from kvscope_record.stretch import words
from kvscope_record.window import Window, read_window

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import busy_server

SECONDS, SEGMENT_S = 900.0, 60.0


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quarter of an hour of a server with few requests."""
    directory = tmp_path_factory.mktemp("recording")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(busy_server, "RUNNING", 3)
        busy_server.write(directory, SECONDS, SEGMENT_S)
    return directory


def times_s(window: Window) -> tuple[float, float]:
    """Begin of the first and end of the last pass, in seconds of the recording."""
    passes = [event for event in window.events if isinstance(event, Scheduled)]
    return passes[0].start_ns * 1e-9 - 1, passes[-1].end_ns * 1e-9 - 1


def clock(window: Window, seconds: float) -> datetime:
    """The time of day, so many seconds after a recording's begin."""
    utc_s = (window.begin.utc_ns - window.begin.time_ns) * 1e-9
    offset = timedelta(seconds=window.facts.get("utc_offset_s", 0))
    return datetime(1970, 1, 1) + timedelta(seconds=utc_s + 1 + seconds) + offset


def test_without_a_choice_it_is_the_newest_ten_minutes(recording: Path) -> None:
    window = read_window(recording)
    begin_s, end_s = times_s(window)
    assert SECONDS - 600 - SEGMENT_S < begin_s <= SECONDS - 600
    assert end_s == pytest.approx(SECONDS, abs=1)
    assert any("the newest 10 minutes" in note for note in window.notes)


def test_the_newest_part(recording: Path) -> None:
    begin_s, end_s = times_s(read_window(recording, Stretch(last_s=120.0)))
    assert SECONDS - 120 - SEGMENT_S < begin_s <= SECONDS - 120
    assert end_s == pytest.approx(SECONDS, abs=1)


@pytest.mark.parametrize("style", ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"])
def test_between_two_times_of_the_server_s_clock(recording: Path, style: str) -> None:
    first = read_window(recording, Stretch(last_s=1e6))
    since, until = (clock(first, at).strftime(style) for at in (200, 400))
    window = read_window(recording, Stretch(since=since, until=until))
    begin_s, end_s = times_s(window)
    assert 200 - SEGMENT_S - 1 < begin_s <= 200
    assert end_s == pytest.approx(400, abs=2)
    shown = words(clock(first, begin_s))
    assert any(shown[:16] in note for note in window.notes)


def test_around_a_request(recording: Path) -> None:
    whole = read_window(recording, Stretch(last_s=1e6))
    arrivals = {e.request: e.time_ns * 1e-9 - 1 for e in whole.events if isinstance(e, Arrival)}
    request = sorted(arrivals)[len(arrivals) // 2]
    window = read_window(recording, Stretch(around=request))
    begin_s, end_s = times_s(window)
    assert begin_s <= arrivals[request] - 59
    assert end_s >= arrivals[request] + 59
    assert end_s - begin_s < 120 + SEGMENT_S + 3
    assert request in {e.request for e in window.events if isinstance(e, Arrival)}


def test_a_stretch_has_what_the_whole_has_of_it(recording: Path) -> None:
    whole = read_window(recording, Stretch(last_s=1e6))
    part = read_window(recording, Stretch(last_s=100.0))
    passes = [event for event in part.events if isinstance(event, Scheduled)]
    same = [e for e in whole.events if isinstance(e, Scheduled) and e.step >= passes[0].step]
    assert [e.step for e in passes] == [e.step for e in same]
    assert [list(e.cached) for e in passes] == [list(e.cached) for e in same]


@pytest.mark.parametrize(
    ("stretch", "sentence"),
    [
        (Stretch(since="2001-01-01T00:00", until="2001-01-01T01:00"), "has nothing from"),
        (Stretch(since="noon"), "--from: 'noon' must be a time of the server's clock"),
        (Stretch(until="25:00"), "--to: '25:00' must be a time"),
        (Stretch(around=10**6), "--around: request 1000000 is not in the recording"),
        (Stretch(session=9), "--session: 9 is not in"),
    ],
)
def test_what_is_not_there_is_refused(recording: Path, stretch: Stretch, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_window(recording, stretch)


def test_options_choose_one_stretch(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", str(recording), "--last", "1min", "--around", "3"]) == 2
    assert "give one of --last, --from with --to, and --around" in capsys.readouterr().err
    assert main(["collect", str(recording.parent), "--last", "1min"]) == 2
    assert "has no recording" in capsys.readouterr().err
