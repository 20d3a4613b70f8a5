"""Watch a recording in the terminal."""

import argparse
import shutil
import sys
import time

from kvscope.api.commands import EXIT_DONE, arguments, command, flag, path
from kvscope.api.commands import argument as option


@command(
    ("recording", "recording --once"),
    path("recording", "a recording's directory"),
    flag("--once", "print the numbers once"),
    option("--every", type=arguments.duration(), default=1.0, metavar="SECONDS", help="default: 1"),
    order=50,
)
def watch(given: argparse.Namespace) -> int:
    """Show what a recorded server's KV cache does now, from the recording's files alone.

    Blocks in use, requests that run and wait, and of the last minute: preemptions, the share of
    prompt tokens found in the prefix cache, and tokens a second. While no pass is computed, the
    line says how long ago the last one was. Ctrl-C ends it.
    """
    from kvscope_record.glance import Watcher

    watcher = Watcher(given.recording)
    shown = sys.stdout.isatty() and not given.once
    try:
        while True:
            glance = watcher.look()
            columns = shutil.get_terminal_size().columns - 1 if shown else sys.maxsize
            line = "no forward pass yet" if glance is None else glance.fitting(columns)
            if shown:  # one line that stays in its place: a longer one would wrap
                line = f"\r\x1b[K{line}"
            print(line, end="" if shown else "\n", flush=True)
            if given.once:
                return EXIT_DONE
            time.sleep(given.every)
    except KeyboardInterrupt:
        print(end="\n" if shown else "")
        return EXIT_DONE
