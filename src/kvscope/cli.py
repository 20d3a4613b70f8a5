"""The command line: `kvscope COMMAND`, with one module below `commands` for each command."""

import argparse
import os
import sys
from collections.abc import Sequence

from kvscope import __version__
from kvscope.commands import (
    analyse,
    calibrate,
    check,
    collect,
    compare,
    doctor,
    import_,
    new,
    plan,
    report,
    run,
    score,
    shipped,
    status,
    submit,
)
from kvscope.errors import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_FAILED,
    KvscopeError,
    reason_of,
)

# A stage is imported when its command runs: `kvscope plan` must not import vLLM.
COMMANDS = (
    new.new,
    plan.plan,
    run.run,
    collect.collect,
    import_.import_,
    analyse.analyse,
    report.report,
    calibrate.calibrate,
    score.score,
    submit.submit,
    status.status,
    compare.compare,
    check.check,
    doctor.doctor,
    shipped.shipped,
)
"""All commands, in the order of `kvscope --help`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code (0 done, 1 failed while working, 2 bad input)."""
    parser = build_parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell requests completions of a command line
        from kvscope import completion

        completion.complete(parser)
    given = parser.parse_args(arguments)
    try:
        return int(given.command(given))
    except KvscopeError as error:
        print(f"kvscope: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("kvscope: interrupted", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the output ended, as in `| head`
        return EXIT_DONE
    except OSError as error:  # not converted to a KvscopeError where it was raised
        place = f"{error.filename}: " if error.filename else ""
        print(f"kvscope: {place}{reason_of(error)}", file=sys.stderr)
        return EXIT_FAILED


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="kvscope",
        description="Shows how an LLM serving engine uses its KV cache under concurrency, and "
        "what happens when the cache overflows.",
        epilog="One path: plan → run → collect → analyse → report. Each stage reads the files of "
        "the stage before; Snakemake runs them all (see README.md).",
    )
    parser.add_argument("--version", action="version", version=f"kvscope {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["EXIT_BAD_INPUT", "main"]
