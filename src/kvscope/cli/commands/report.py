"""Write the page of a study."""

import argparse

from kvscope.base.errors import EXIT_DONE, KvscopeError
from kvscope.cli.commands.arguments import RESULTS_DIR, argument, path
from kvscope.cli.commands.command import command


@command(
    ("quickstart", "results/experiments/*"),
    argument(
        "what",
        nargs="+",
        metavar="STUDY | DIR",
        help="a planned study's name, or runs' directories",
    ),
    RESULTS_DIR,
    path("--out", "default: results/studies/<study>"),
)
def report(given: argparse.Namespace) -> int:
    """Write the page and the figures of a study, or of runs given by their directories."""
    from kvscope.report.figures.registry import missing_figures
    from kvscope.report.load import load
    from kvscope.report.section import Report
    from kvscope.report.study import write_report
    from kvscope.report.validity import refusals, summary

    study = load(given.what, given.results)
    page = Report(study, given.results, given.out)
    print(write_report(page))
    print("\n".join([*summary(study), *missing_figures(study, page.drawings)]))
    if refused := refusals(study):
        raise KvscopeError("not shown: " + ", ".join(refused))
    return EXIT_DONE
