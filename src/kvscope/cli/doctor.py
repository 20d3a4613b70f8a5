"""`kvscope doctor`: checks the requirements of kvscope on this machine, with advice."""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from kvscope.base import processes
from kvscope.base.errors import EXIT_DONE, EXIT_FAILED, BadInput
from kvscope.base.machine import installed_vllm, load_1min
from kvscope.base.reading import last_line
from kvscope.cli import packages
from kvscope.engine.vllm.versions import unless_engine, unless_scheduling

# Only modules that need the standard library alone: any other package may be broken.

OLDEST_PYTHON = (3, 11)
NEEDED_DISK_GIB = 2.0
IMPORT_LIMIT_S = 300.0
ANSWER_LIMIT_S = 20.0
NAMED_FLAWS = 5  # the others are counted
MAKE = "make" if packages.in_checkout() else "in a checkout of kvscope, make"

ENGINE_QUESTION = "from kvscope.engine.vllm import probe; probe.main()"
ENGINE_SETTINGS = {"VLLM_CONFIGURE_LOGGING": "0", "VLLM_NO_USAGE_STATS": "1"}

# For each scheduler: its name, its submit command, the line with its version, and the
# exit codes with which it does.
NUMBER = r"v?\d[\w.+~-]*"
SCHEDULERS = (
    ("Slurm", "sbatch", rf"slurm[\w-]*( version)? {NUMBER}", (0,)),
    ("PBS", "qsub", rf"((open)?pbs(pro)?(.version)?( =|:)?|version:) (pbspro_)?{NUMBER}", (0, 1)),
)


@dataclass(frozen=True)
class MachineCheck:
    """A line of the report: the check, whether it is ok, the finding, and advice."""

    name: str
    ok: bool
    found: str
    advice: str = ""


def main() -> int:
    """Print the report; returns exit code 0 if there is no problem, else 1."""
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    problems = 0
    for check in checks():  # printed one by one, since some take seconds
        print(_line(check, colour), flush=True)
        problems += not check.ok
    return EXIT_FAILED if problems else EXIT_DONE


def checks(results: Path = Path("results")) -> Iterator[MachineCheck]:
    """Yield the checks one after the other, each when it is done.

    `results` is the directory that results are written to.
    """
    yield python_check()
    yield packages_check()
    yield from engine_checks()
    yield from profiler_checks()
    yield schedulers_check()
    yield disk_check(results)
    yield threads_check()


def _line(check: MachineCheck, colour: bool) -> str:
    word, code = ("ok     ", "32") if check.ok else ("problem", "1;31")
    name = f"{check.name:<15}"
    if colour:
        word, name = f"\033[{code}m{word}\033[0m", f"\033[1m{name}\033[0m"
    advice = f"\n{'':9}→ {check.advice}" if check.advice and not check.ok else ""
    return f"{word}  {name}{check.found}{advice}"


def python_check() -> MachineCheck:
    """Whether this Python is recent enough."""
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return MachineCheck(
        "Python",
        sys.version_info >= OLDEST_PYTHON,
        f"{platform.python_version()} in {sys.prefix}",
        f"kvscope needs {oldest} or later: {MAKE} env PYTHON=python{oldest}",
    )


def packages_check() -> MachineCheck:
    """Whether each Python package is installed, of the right version, and complete.

    In a checkout envs/ pins the packages; elsewhere the installed kvscope requires them.
    """
    if packages.in_checkout():
        flaws, required = packages.pinned_flaws(), f"as envs/ pins them for {packages.device()}"
        incomplete = any(flaw.problem.endswith(packages.MISSING) for flaw in flaws)
        advice = f"rm -r {shlex.quote(sys.prefix)}; make env" if incomplete else "make env"
    else:
        flaws, required = installed_flaws(), "as kvscope requires them"
        anew = ("pip", "install", "--force-reinstall", "--no-deps", *(f.requirement for f in flaws))
        advice = shlex.join(anew)
    return MachineCheck("packages", not flaws, _format_flaws(flaws) or required, advice)


def installed_flaws() -> list[packages.Flaw]:
    """The problems of an installed kvscope and of all that it requires, directly or indirectly."""
    try:
        required = _requirements()
    except ImportError:
        return [packages.Flaw("packaging", "does not import")]
    return packages.flaws(
        (name, str(versions), partial(versions.contains, prereleases=True))
        for name, versions in sorted(required.items())
    )


def _requirements() -> dict[str, Any]:
    """kvscope and what it requires, directly or indirectly, with the versions that will do."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    todo, done, versions = [Requirement("kvscope")], set[tuple[str, ...]](), dict[str, Any]()
    while todo:
        requirement = todo.pop()
        name, extras = canonicalize_name(requirement.name), ("", *sorted(requirement.extras))
        versions[name] = requirement.specifier & versions.get(name, requirement.specifier)
        if not packages.version_of(name) or (name, *extras) in done:
            continue
        done.add((name, *extras))
        for line in map(Requirement, metadata.requires(name) or ()):
            if line.marker is None or any(line.marker.evaluate({"extra": e}) for e in extras):
                todo.append(line)
    return versions


def _format_flaws(flaws: Sequence[packages.Flaw]) -> str:
    named = [f"{flaw.requirement} ({flaw.problem})" for flaw in flaws[:NAMED_FLAWS]]
    more = [f"and {len(flaws) - NAMED_FLAWS} more"] if len(flaws) > NAMED_FLAWS else []
    return ", ".join(named + more)


def engine_checks() -> Iterator[MachineCheck]:
    """Whether vLLM imports, and which devices its torch sees."""
    build = " ".join(installed_vllm() or ())
    answer, words = _ask_engine() if build else ({}, "")
    if not build:
        yield MachineCheck("vLLM", False, "not installed", f"{MAKE} env")
    elif not answer:
        advice = f"{MAKE} env; if that does not help, its last line of output was: {words}"
        yield MachineCheck("vLLM", False, f"{build} does not import", advice)
    else:
        yield version_check(build, str(answer["torch"]))
    yield devices_check(answer.get("gpus", []))


def version_check(build: str, torch: str) -> MachineCheck:
    """Whether kvscope runs on this build of vLLM, by its name and version, and on which devices."""
    _, version = build.split()
    unknown = unless_scheduling(version)
    some = ", for devices without a worker alone" if unless_engine(version) else ""
    limit = "" if unknown else some
    return MachineCheck("vLLM", not unknown, f"{build} with torch {torch}{limit}", unknown or "")


def devices_check(gpus: list[str]) -> MachineCheck:
    """The devices that a run can use; a problem if the driver has a GPU that torch does not see."""
    names = ["cpu"] + [f"cuda ({name})" for name in gpus]
    hidden = not gpus and shutil.which("nvidia-smi") is not None
    advice = (
        f"nvidia-smi is here but torch sees no GPU: {MAKE} env DEVICE=cuda, then check the driver"
    )
    return MachineCheck("devices", not hidden, ", ".join(names), advice)


def _ask_engine() -> tuple[dict[str, Any], str]:
    """The JSON that ENGINE_QUESTION prints (empty if it fails), and its last line of output."""
    try:
        done = processes.run(
            [sys.executable, "-c", ENGINE_QUESTION],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=IMPORT_LIMIT_S,
            env=os.environ | ENGINE_SETTINGS,
        )
    except subprocess.TimeoutExpired:
        return {}, f"none within {IMPORT_LIMIT_S:.0f} s"
    except OSError as error:
        return {}, f"none, Python does not start: {error}"
    if done.returncode != 0:
        return {}, last_line(done.stderr) or f"none, exit code {done.returncode}"
    try:
        answer: dict[str, Any] = json.loads(last_line(done.stdout))
    except ValueError:
        return {}, last_line(done.stdout) or "none"
    return answer, ""


def profiler_checks() -> Iterator[MachineCheck]:
    """Whether nsys is installed, and whether a test capture contains its NVTX ranges."""
    try:
        from kvscope.run import profiler
    except ImportError as error:
        yield MachineCheck("Nsight Systems", False, f"cannot be looked for: {error}", f"{MAKE} env")
        return
    try:
        nsys = profiler.find_nsys()
    except BadInput as error:
        yield MachineCheck("Nsight Systems", False, str(error), "unset KVSCOPE_NSYS or mend it")
        return
    if nsys is None:
        advice = (
            f"{MAKE} nsys, or name one in KVSCOPE_NSYS; without it runs work, with profiler=none"
        )
        yield MachineCheck("Nsight Systems", False, "not found", advice)
        return
    yield MachineCheck("Nsight Systems", True, f"{nsys.version} at {nsys.path}")
    complaint = profiler.verify_capture(nsys)
    advice = f"nvtx must be the version in envs/cpu.txt ({MAKE} env); else take another nsys"
    yield MachineCheck("NVTX recording", complaint is None, complaint or "a capture has it", advice)


def schedulers_check() -> MachineCheck:
    """The batch schedulers whose submit command is on PATH, beside local execution."""
    names = ["local"]
    for name, command, shape, codes in SCHEDULERS:
        if shutil.which(command):
            question = [command, "--version"], f"(?i:{shape})", ANSWER_LIMIT_S, codes
            version, why = processes.version_of(*question)
            names.append(f"{name} ({version or f'version unknown: {why}'})")
    return MachineCheck("schedulers", True, ", ".join(names))


def disk_check(results: Path) -> MachineCheck:
    """Whether the file system of `results` has enough free space."""
    place = results.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / 2**30
    advice = (
        f"a study needs {NEEDED_DISK_GIB:.0f} GiB or more: make room, or link results/ elsewhere"
    )
    return MachineCheck("disk", free >= NEEDED_DISK_GIB, f"{free:.1f} GiB free at {place}", advice)


def threads_check() -> MachineCheck:
    """The cores that a run can use, and whether other processes keep them busy.

    OMP_NUM_THREADS and OMP_WAIT_POLICY are not checked: every run sets its own.
    """
    cores, load = len(os.sched_getaffinity(0)), load_1min()
    advice = "other processes keep them busy, so measured times would be long and scattered: wait"
    words = "load unknown" if load is None else f"load {load:.1f}"
    return MachineCheck("cores", (load or 0.0) < cores, f"{cores}, {words}", advice)
