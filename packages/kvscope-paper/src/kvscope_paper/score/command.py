"""Compare another simulator with a run."""

import argparse
import json
import sys

from kvscope.api.commands import EXIT_DONE, EXIT_FAILED, argument, arguments, command, flag, path


@command(
    ("steps.csv --run results/experiments/ID", "steps.csv --run results/experiments/ID --check"),
    path("trace", "the steps of the other one, .csv or .json", metavar="TRACE"),
    path("--run", "the run", required=True),
    argument("--repeat", type=arguments.whole(0), default=0, metavar="N", help="default: 0"),
    flag("--json", "print the score as JSON"),
    flag("--check", "exit with 1 if a step differs"),
)
def score(given: argparse.Namespace) -> int:
    """Compare the steps of another simulator with a run of the same workload, step by step.

    It names the first step that differs, and compares victims, preemptions, recomputed tokens and
    durations. A divergence is a result and exits with 0, with --check with 1; a trace that cannot
    be used exits with 2. docs/SCORE.md has the format.
    """
    from kvscope_paper.score.score import score

    result = score(given.trace, given.run, given.repeat)
    print(json.dumps(result.to_json, indent=2) if given.json else "\n".join(result.lines))
    return EXIT_FAILED if given.check and result.first_divergence is not None else EXIT_DONE


@command(
    ("--out references",),
    path("--out", "where traces, requests and runs are written", required=True),
    arguments.CONFIG_DIR,
)
def references(given: argparse.Namespace) -> int:
    """Write reference traces under memory pressure for `kvscope score`, and print their table.

    Each is a modeled run of the study `score`: requests that share prefixes in a cache that is
    oversubscribed, with a prefix cache and with vLLM's own offloading. SHA256SUMS has their hashes.
    """
    from kvscope_paper.score.references import table, write_references

    print(table(write_references(given.out, given.config_dir, sys.stderr)))
    return EXIT_DONE
