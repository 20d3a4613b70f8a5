"""The command line: `kvscope COMMAND`, with one module below `commands` for each command."""

import argparse
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

from kvscope import __version__
from kvscope.base import extensions, homes, plugins, processes
from kvscope.base.errors import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_FAILED,
    BadInput,
    KvscopeError,
    reason_of,
)
from kvscope.cli.commands import (
    analyse,
    check,
    collect,
    compare,
    crate,
    doctor,
    import_,
    new,
    plan,
    report,
    run,
    shipped,
)
from kvscope.cli.commands.command import Command, CommandParser

# A stage is imported when its command runs: `kvscope plan` must not import vLLM.
COMMANDS = {
    10: new.new,
    20: plan.plan,
    30: run.run,
    70: collect.collect,
    80: import_.import_,
    90: analyse.analyse,
    100: report.report,
    110: crate.crate,
    150: compare.compare,
    160: check.check,
    190: doctor.doctor,
    200: shipped.shipped,
}
"""kvscope's own commands by their place in `kvscope --help`; other commands have an `order`."""

GROUP = "kvscope.command"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code (0 done, 1 failed while working, 2 bad input)."""
    prepare_streams()
    parser = build_parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell requests completions of a command line
        from kvscope.cli import completion

        completion.complete(parser)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a file has each line at once
    words = sys.argv[1:] if arguments is None else arguments
    if refusal := refusal_of_absent(words):
        print(f"kvscope: {refusal}", file=sys.stderr)
        return EXIT_BAD_INPUT
    given = parser.parse_args(words)
    try:
        with processes.interrupts_kept():
            code = int(given.command(given))
        sys.stdout.flush()  # a full disk is an error of this command, not of Python's exit
        return code
    except KvscopeError as error:
        print(f"kvscope: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("kvscope: interrupted", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:
        abandon_output()  # its reader ended, as in `| head`
        return EXIT_DONE
    except ImportError as error:  # an environment that is not whole
        print(f"kvscope: {error}; `kvscope doctor` says what is missing", file=sys.stderr)
        return EXIT_FAILED
    except (Exception, SystemExit) as error:
        from kvscope.plan import registry  # not above: the doctor needs the standard library only

        if fault := registry.fault_of_option(error):
            print(f"kvscope: {fault}", file=sys.stderr)
            return EXIT_BAD_INPUT
        if not isinstance(error, OSError):
            raise
        # It was not converted to a KvscopeError where it was raised.
        place = f"{error.filename}: " if error.filename else ""
        print(f"kvscope: {place}{reason_of(error)}{homes.advice(error.filename)}", file=sys.stderr)
        abandon_output()
        return EXIT_FAILED


def prepare_streams() -> None:
    """Let any text be printed: to a closed stream, and in an encoding that lacks its characters."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as by `>&-`
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r+"))
    if isinstance(sys.stdout, io.TextIOWrapper):  # an undecodable file name is printed as its bytes
        utf_8 = sys.stdout.encoding.lower() == "utf-8"
        with suppress(OSError):  # its file was replaced since Python opened it
            sys.stdout.reconfigure(errors="surrogateescape" if utf_8 else "backslashreplace")


def abandon_output() -> None:
    """Drop pending output, which Python would try to write at its exit, with a complaint."""
    with suppress(OSError, ValueError):  # a stream that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def plugin_commands() -> Iterator[Command]:
    """The commands of other packages; an unusable command is named on standard error."""
    taken = {command.name for command in COMMANDS.values()}
    for name in plugins.names(GROUP):
        try:
            loaded = plugins.load(GROUP, name, Command)
            if loaded.name in taken:
                raise BadInput(
                    f"{loaded.name!r} is a command of kvscope or of another package; uninstall one"
                )
            taken.add(loaded.name)
        except BadInput as error:
            print(f"kvscope: {error}", file=sys.stderr)
        else:
            yield loaded


def refusal_of_absent(words: Sequence[str]) -> str | None:
    """Refusal of a command of a package that is not installed; None for other commands."""
    name = next(iter(words), "")
    clause = extensions.absent("command", name)
    if clause is None or name in plugins.names(GROUP):
        return None
    return f"{name} is no command here: {clause}"


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
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandParser)
    placed = [*COMMANDS.items(), *((command.order, command) for command in plugin_commands())]
    for _, command in sorted(placed, key=lambda one: one[0]):
        command.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["EXIT_BAD_INPUT", "main"]
