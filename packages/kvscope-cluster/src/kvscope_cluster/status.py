"""Show the state of a study."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvscope.api.commands import EXIT_DONE, argument, arguments, command, flag
from kvscope.api.errors import BadInput
from kvscope_cluster import packs_directory, require_packages

if TYPE_CHECKING:
    from kvscope_cluster.show import Look


@command(
    ("quickstart", "quickstart --watch", "results/experiments/*"),
    argument("what", nargs="+", metavar="STUDY | DIR", help="as for report"),
    arguments.RESULTS_DIR,
    argument(
        "--watch",
        nargs="?",
        type=arguments.duration(),
        const=10.0,
        metavar="SECONDS",
        help="show what was submitted to a cluster again and again (default: every 10 s)",
    ),
    flag("--all", "a row for every submitted experiment"),
    order=140,
)
def status(given: argparse.Namespace) -> int:
    """Show the state of a study: experiments with results, valid ones, reasons of the others.

    Of what was submitted to a cluster, which experiment waits, runs where, or ended how; what it
    costs and when it is done. While experiments wait or run, only that, because it reads few files.
    """
    packs = _packs_of(given)
    if given.watch is not None:
        if packs is None:
            raise BadInput(f"status --watch: nothing was submitted from {given.results}")
        _watch(packs, given)
        return EXIT_DONE
    looked = packs() if packs else None
    if looked is None or looked.is_over:
        from kvscope.api.report import load, summary

        submitted = looked is not None and bool(looked.rows)
        print("\n".join(summary(load(given.what, given.results), submitted)))
    if looked is not None and looked.rows:
        from rich.console import Console

        Console().print(looked.table(given.all))
    return EXIT_DONE


def _packs_of(given: argparse.Namespace) -> Callable[[], Look] | None:
    """A function that looks at the packs of a study; None if nothing of one was submitted."""
    if len(given.what) != 1 or not packs_directory(given.results).is_dir():
        return None
    from kvscope.api.plan import manifest

    require_packages()
    from kvscope_cluster.show import look

    try:
        planned = manifest.read(given.what[0], given.results)
    except BadInput:
        return None  # a run's directory, which no pack names
    return lambda: look(planned, given.results)


def _watch(packs: Callable[[], Look], given: argparse.Namespace) -> None:
    """Show the table again and again, until all is over or Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            looked = packs()
            if console.is_terminal:
                live.update(looked.table(given.all), refresh=True)
            else:  # a file has every look
                console.print(looked.table(given.all))
            if looked.is_over:
                return
            time.sleep(given.watch)
