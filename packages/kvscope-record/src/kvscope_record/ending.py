"""The end of a process that records: its last records are written before it is gone."""

import atexit
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def at_end(close: Callable[[], None]) -> None:
    """Have a recording closed when the process exits, or a signal ends it that has no handler."""
    atexit.register(close)
    if threading.current_thread() is not threading.main_thread():
        return
    process = os.getpid()

    def end(number: int, _: FrameType | None) -> None:
        if os.getpid() == process:  # not a fork's
            close()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)
