"""Show the state of a study."""

import argparse
import time

from kvscope import cluster
from kvscope.commands.command import RESULTS_DIR, argument, command, flag
from kvscope.errors import EXIT_DONE, BadInput
from kvscope.layout import packs_directory


@command(
    ("quickstart", "quickstart --watch", "results/experiments/*"),
    argument("what", nargs="+", metavar="STUDY | DIR", help="as for report"),
    RESULTS_DIR,
    argument(
        "--watch",
        nargs="?",
        type=float,
        const=10.0,
        metavar="SECONDS",
        help="show what was submitted to a cluster again and again (default: every 10 s)",
    ),
    flag("--all", "a row for every submitted experiment"),
)
def status(given: argparse.Namespace) -> int:
    """Show the state of a study: experiments with results, valid ones, reasons of the others.

    Also of what was submitted to a cluster: where it runs, what it costs and when it is done.
    """
    from kvscope.report.load import load
    from kvscope.report.summary import summary

    if given.watch is None:
        print("\n".join(summary(load(given.what, given.results))))
    if len(given.what) == 1 and packs_directory(given.results).is_dir():
        _show_packs(given)
    elif given.watch is not None:
        raise BadInput(f"status --watch: nothing was submitted from {given.results}")
    return EXIT_DONE


def _show_packs(given: argparse.Namespace) -> None:
    """The table of a study's packs, once or until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    from kvscope.plan import manifest

    cluster.require_packages()
    from kvscope.cluster import show

    try:
        planned = manifest.read(given.what[0], given.results)
    except BadInput:
        return  # a run's directory, which no pack names
    console = Console()
    if given.watch is None:
        if show.overview_of(planned, given.results).packs:
            console.print(show.table(planned, given.results, given.all))
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            table = show.table(planned, given.results, given.all)
            if console.is_terminal:
                live.update(table, refresh=True)
            else:  # a file has every look
                console.print(table)
            time.sleep(given.watch)
