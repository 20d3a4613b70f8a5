"""The recording under way, for code that adds to it during a pass."""

from typing import Protocol

from kvscope.engine.clock import Clock
from kvscope.engine.marks import Marks
from kvscope.engine.recording import Recording


class CurrentRecording(Protocol):
    """The recording of the repeat under way, with its ranges, and the clock of its times."""

    recording: Recording
    marks: Marks
    clock: Clock
