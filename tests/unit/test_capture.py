"""A capture of Nsight Systems, whose report is there once it is whole."""

from contextlib import suppress
from pathlib import Path

import pytest

from kvscope.run.capture import CaptureSession
from kvscope.run.profiler import Nsys


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> CaptureSession:
    """A session of an nsys that opens its report at the start and writes it at the end."""

    def tell(self: CaptureSession, pid: int, word: str, *options: str) -> None:
        outputs = [option for option in options if option.startswith("--output=")]
        files.extend(Path(f"{output.partition('=')[2]}.nsys-rep") for output in outputs)
        files[-1].write_text("whole" if word == "stop" else "")

    files: list[Path] = []
    monkeypatch.setattr(CaptureSession, "_tell", tell)
    return CaptureSession(Nsys(Path("nsys"), "2023.4"), [], {})


def test_a_report_has_its_name_when_it_is_whole(session: CaptureSession, tmp_path: Path):
    report = tmp_path / "trace.nsys-rep"
    with session.capture(1, tmp_path / "trace"):
        assert not report.exists()
    assert report.read_text() == "whole"
    assert [*tmp_path.iterdir()] == [report]


def test_a_capture_that_is_cut_off_leaves_no_report(session: CaptureSession, tmp_path: Path):
    with suppress(Killed), session.capture(1, tmp_path / "trace"):
        raise Killed
    assert not (tmp_path / "trace.nsys-rep").exists()
