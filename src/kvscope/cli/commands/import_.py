"""Convert published measurements."""

import argparse

from kvscope.base import plugins
from kvscope.base.errors import EXIT_DONE
from kvscope.cli.commands.arguments import argument, path
from kvscope.cli.commands.command import command

KINDS = plugins.names("kvscope.importer")


@command(
    (
        "KIND FILE --out results/published/NAME",
        "KIND FILE --series RUN --out results/published/RUN",
    ),
    argument(
        "kind",
        metavar="KIND",
        help=f"what the files are: {', '.join(KINDS) or 'no installed package has a kind'}",
    ),
    path("paths", "a published file", nargs="+", metavar="PATH"),
    argument("--series", metavar="NAME", help="which run of a file that holds several"),
    path("--out", "the run's directory to write", required=True),
)
def import_(given: argparse.Namespace) -> int:
    """Convert published measurements into a run's directory, for analyse, report and compare.

    Which kinds of files there are, installed packages say; some take several files of one run.
    """
    from kvscope.collect.importer import import_run

    if summary := import_run(given.kind, given.paths, given.out, given.series):
        print(summary)
    print(given.out)
    return EXIT_DONE
