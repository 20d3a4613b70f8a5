"""The recorder of a server: its faults do not disturb the server, and its files are whole."""

from collections.abc import Callable
from typing import Any

import pytest

from kvscope.engine.marks import Marks
from kvscope.engine.observer import ObservedPass
from kvscope_record.options import RecordOptions
from kvscope_record.recorder import ServerRecorder
from kvscope_record.records import Segment
from kvscope_record.window import read_window
from kvscope_record.writer import Writer
from tests.unit.test_observer import Scheduler, plan


class Faulty(ServerRecorder):
    """A recorder with a fault."""

    def scheduled(self, one: ObservedPass) -> None:
        raise KeyError(one.step)


def recorded(directory: Any, made: Callable[..., ServerRecorder]) -> tuple[Any, Writer]:
    facts = {"recording": "abc", "hash_block_size": 16, "prefix_caching": False}
    writer = Writer(RecordOptions(directory))
    scheduler: Any = Scheduler()
    made(writer, facts).observe(scheduler, Marks())
    return scheduler, writer


def test_a_fault_of_a_server_s_recorder_ends_the_recording_and_nothing_else(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
):
    scheduler, writer = recorded(tmp_path, Faulty)
    output = plan("a")
    assert scheduler.schedule(output) is output
    assert scheduler.update_from_output(output, "tokens") == {0: "tokens"}
    assert not writer.open
    assert f"records no longer into {tmp_path}: KeyError in _scheduled: 0" in caplog.text
    writer.close()


def test_a_server_s_recording_is_whole_once_it_is_shut_down(tmp_path: Any):
    scheduler, writer = recorded(tmp_path, ServerRecorder)
    scheduler.shutdown()
    assert not writer.open
    assert isinstance(read_window(tmp_path).begin, Segment)
