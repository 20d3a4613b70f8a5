"""Nothing that kvscope starts outlives it, however it ends."""

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from kvscope.base import processes
from tests.ending import ENDS, assert_all_end, names

ROOT = Path(__file__).parents[2]
# Programs that start others as kvscope does: sleeping ones, some of which start another one.
NAPS = """
import os, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from kvscope.base import processes
nap, tree = ["sleep", "613"], ["sh", "-c", "sleep 613 & sleep 614"]
def forever(_):
    subprocess.run(nap, preexec_fn=processes.end_with_parent())
"""
PROGRAMS = {
    "run": "processes.run(nap, timeout=600)",
    "running": "with processes.running(nap) as one: one.wait()",
    "running, in a pipe": "with processes.running(nap, stderr=-1) as one: one.stderr.read()",
    "running_whole": (
        "with processes.exit_on_signals(), processes.running_whole(tree) as one: one.wait()"
    ),
    "running_whole that ignores TERM": (
        'tree[2] = "trap : TERM HUP INT; sleep 613; while true; do sleep 613; done"\n'
        "with processes.exit_on_signals(), processes.running_whole(tree) as one: one.wait()"
    ),
    "forks": "with processes.forks(2) as pool: list(pool.map(forever, [1, 2]))",
    "forks that work": "with processes.forks(2) as pool: list(pool.map(time.sleep, [613, 613]))",
    "forks, where signals are exceptions": (
        "with processes.exit_on_signals(), processes.forks(2) as pool:\n"
        "    list(pool.map(forever, [1, 2]))"
    ),
    "forks that begin, where signals are exceptions": (
        "with processes.exit_on_signals(), processes.forks(2) as pool:\n"
        "    list(pool.map(time.sleep, [613, 613]))"
    ),
    "threads": (
        "with processes.exit_on_signals(), ThreadPoolExecutor(2) as pool, "
        "processes.no_child_left():\n    list(pool.map(processes.run, [nap, nap]))"
    ),
}


# `make test` ends the parent only in these ways.
REPRESENTATIVE = ("run", "running_whole that ignores TERM", "forks, where signals are exceptions")
ITS_ENDS = (signal.SIGTERM, signal.SIGKILL)
CASES = [
    pytest.param(
        kind,
        way,
        marks=[pytest.mark.thorough] * (kind not in REPRESENTATIVE or way not in ITS_ENDS),
        id=f"{kind}-{way}",
    )
    for kind in PROGRAMS
    for way in ENDS
]


def all_work(kind: str, family: set[psutil.Process]) -> bool:
    """Whether each child that a program of this kind has is there."""
    if kind.startswith("forks that"):
        return len(family) >= 2
    return names("sleep 613", at_least=2 if kind.startswith(("forks", "threads")) else 1)(family)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "way"), CASES)
def test_a_parent_that_ends_takes_all_with_it(
    kind: str, way: "signal.Signals | str", tmp_path: Path
):
    program = NAPS + PROGRAMS[kind]
    works = partial(all_work, kind)
    assert_all_end([sys.executable, "-c", program], works, way, tmp_path)


@pytest.mark.slow
def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path):
    """nohup ignores SIGHUP in this way."""
    program = (
        "import os, signal; from kvscope.base.processes import exit_on_signals\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with exit_on_signals(): os.kill(os.getpid(), signal.SIGHUP); print('goes on')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "goes on\n"


@pytest.mark.slow
def test_a_signal_that_is_ignored_ends_no_fork_either(tmp_path: Path):
    """A shell ignores Ctrl-C in this way for a command in the background."""
    program = (
        "import os, signal; from kvscope.base.processes import forks\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "def work(_): os.kill(os.getpid(), signal.SIGINT); return 'goes on'\n"
        "with forks(1) as pool: print(*pool.map(work, [1]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "goes on\n"


# ------------------------------------------------------------------ nothing is started otherwise

STARTING = {"run", "Popen", "call", "check_call", "check_output", "fork", "ProcessPoolExecutor"}
OWN = {"kvscope/base/processes.py", "submitit_packs/processes.py"}
# A zygote's forks watch their campaign's lock; a pack outlives who submits it, its members' own
# processes die with it by themselves.
TIED_OTHERWISE = {
    "kvscope/run/zygote.py",
    "submitit_packs/schedulers/local.py",
    "submitit_packs/pilot.py",
    "submitit_packs/member.py",
}
TIES = {"end_with_parent()", "_end_with_parent()"}


def sources() -> Iterator[Path]:
    yield from (ROOT / "src").rglob("*.py")
    for package in (ROOT / "packages").iterdir():
        yield from (package / "src").rglob("*.py")


def started(path: Path) -> Iterator[ast.Call]:
    """The calls of a module that start a process without `kvscope.base.processes`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        words = ast.unparse(node.func).split(".")
        of_library = words[0] in ("subprocess", "os", "multiprocessing", "ProcessPoolExecutor")
        if of_library and words[-1] in STARTING:
            yield node


def test_every_process_is_started_so_that_it_ends_with_this_one():
    for path in sources():
        name = "/".join(path.parts[path.parts.index("src") + 1 :])
        for call in () if name in OWN else started(path):
            given = [ast.unparse(k.value) for k in call.keywords if k.arg == "preexec_fn"]
            ends = TIES & {*given} or name in TIED_OTHERWISE
            assert ends, f"{path}:{call.lineno} may outlive kvscope"


def test_an_interrupt_stays_one_where_a_library_makes_an_error_of_it():
    def library() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as interrupt:
            raise ValueError("error calling a function") from interrupt

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), processes.interrupts_kept():
        library()
    with pytest.raises(ValueError, match="another"), processes.interrupts_kept():
        raise ValueError("another")
    assert signal.getsignal(signal.SIGINT) is before
