"""One line of progress: replaced on a terminal, now and then elsewhere, all of it in the log."""

import io
from pathlib import Path

import pytest

from kvscope.run.display import CLEAR, SECONDS_BETWEEN_LINES, Line


class Terminal(io.StringIO):
    """A stream that keeps the text of a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def seen(self) -> list[str]:
        """The lines that a person sees in the end."""
        lines = self.getvalue().split("\n")
        return [line.rpartition(CLEAR)[2] for line in lines]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("kvscope.run.display.time.monotonic", lambda: now[0])
    return now


def test_on_a_terminal_a_line_replaces_the_one_before():
    out = Terminal()
    with Line(out) as line:
        line.show("a long round")
        line.show("round 2")
        assert out.seen == ["round 2"]
        line.say("e1 failed")
        line.show("round 3")
        assert out.seen == ["e1 failed", "round 3"]
        line.note("e2: 3 s")
    assert out.seen == ["e1 failed", ""]


def test_elsewhere_there_is_a_line_now_and_then(clock: list[float]):
    out = io.StringIO()
    with Line(out) as line:
        for second in range(40):
            clock[0] = second
            line.show(f"round {second}")
        line.note("e2: 3 s")
        line.say("e1 failed")
    rounds = range(0, 40, int(SECONDS_BETWEEN_LINES) + 1)
    assert out.getvalue().splitlines() == [*(f"round {n}" for n in rounds), "e2: 3 s", "e1 failed"]
    assert "\r" not in out.getvalue()


@pytest.mark.parametrize("out", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_the_log_has_every_line(tmp_path: Path, out: io.StringIO):
    log = tmp_path / "of" / "a.log"
    with Line(out, log) as line:
        for words in ("round 1", "round 2"):
            line.show(words)
        line.note("e2: 3 s")
        line.say("e1 failed")
        assert log.read_text() == "round 1\nround 2\ne2: 3 s\ne1 failed\n"
