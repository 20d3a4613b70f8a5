"""Convert published measurements."""

import argparse

from kvscope.commands.command import argument, command, path
from kvscope.errors import EXIT_DONE


@command(
    (
        "unboxkv log-Yarn-Llama-2-7b-64k-….log --out results/published/mixed",
        "unboxkv-series STEPS.csv STATS.csv --out results/published/swap",
        "unboxkv-series LONG.csv --series swap --out results/published/swap",
        "unboxkv-trace kv_read_pattern.json kv_write_pattern.json --out results/published/trace",
    ),
    argument(
        "kind",
        metavar="KIND",
        help="what the files are: unboxkv (a log), unboxkv-series or unboxkv-trace",
    ),
    path("paths", "a published file", nargs="+", metavar="PATH"),
    argument("--series", metavar="NAME", help="which run of a file that holds several"),
    path("--out", "the run's directory to write", required=True),
)
def import_(given: argparse.Namespace) -> int:
    """Convert published measurements into a run's directory, for analyse, report and compare.

    The files are the step and stats series of the UnBoxKV-IO artifact, as two files in any order or
    one file of the long form; its traces of kernels' reads and writes, both files or one; or one of
    its logs of vLLM 0.4.2 (unboxkv).
    """
    from kvscope.collect.unboxkv import importer

    summary = importer.import_run(given.kind, given.paths, given.out, given.series)
    if summary:
        print(summary)
    print(given.out)
    return EXIT_DONE
