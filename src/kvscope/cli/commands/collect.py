"""Write the tables of a run."""

import argparse
import sys

from kvscope.base.errors import EXIT_DONE, BadInput
from kvscope.cli.commands.arguments import STRETCH, flag, path, stretch_of
from kvscope.cli.commands.command import command


@command(
    (
        "results/experiments/ID --perfetto",
        "--nsys report.sqlite --out tables",
        "recording --last 1h",
    ),
    path("run", "a run's directory, or that of a recording", nargs="?"),
    path("--nsys", "an nsys SQLite export", metavar="FILE.sqlite"),
    path("--out", "default: results/tables/<id> for a run's directory"),
    flag("--perfetto", "also write a trace for ui.perfetto.dev"),
    *STRETCH,
)
def collect(given: argparse.Namespace) -> int:
    """Write the tables of a run: its nsys export and its host records, aligned on one timeline.

    Of a recording of a server, its host records are made first, of a stretch of what it holds by
    now: the newest ten minutes, unless an option chooses another.
    Or write the tables of any nsys export by itself.
    """
    from kvscope.base.files import read_json
    from kvscope.base.layout import tables_directory
    from kvscope.collect import collector, foreign
    from kvscope.plan.experiment import read_settings
    from kvscope.tables.accounts import COLLECTED

    if (given.run is None) == (given.nsys is None):
        raise BadInput("collect: give a run's directory, or --nsys FILE.sqlite with --out DIR")
    if given.nsys is not None:
        if given.out is None:
            raise BadInput("collect --nsys: --out DIR must name the directory of the tables")
        out = given.out
        collector.collect_nsys(given.nsys, out)
    else:
        out = given.out or tables_directory(given.run)
        for note in foreign.make_records(given.run, stretch_of(given)):
            print(f"kvscope: {note}", file=sys.stderr)
        read_settings(given.run)  # refuses a run whose settings are not its own
        collector.collect_run(given.run, out, perfetto=given.perfetto)
    for warning in read_json(out / COLLECTED)["warnings"]:
        print(f"kvscope: {warning}", file=sys.stderr)
    print(out)
    return EXIT_DONE
