"""Machines unlike the one that kvscope was written on, each simulated.

Whatever a machine lacks or hides, `plan`, `doctor` and the functions that read the machine answer
with a value or one sentence, never with a traceback.
"""

import builtins
import io
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvscope.base.errors import EXIT_DONE, EXIT_FAILED
from kvscope.base.processes import kill
from kvscope.cli import doctor, packages
from kvscope.cli import main as cli
from kvscope.plan import resources
from kvscope.report import render
from kvscope.run import profiler, provenance
from kvscope.run.load import load_between, read_cpu_time
from kvscope.tables.runschema import HardwareRecord, LoadRecord

CONFIG = Path(__file__).parents[2] / "config"
PLAN = ["plan", "--config-dir", str(CONFIG)]
GIB = 2**30

STAT = "cpu  100 10 20 1000 5 1 2 7 50 0\ncpu0 100 10 20 1000 5 1 2 7 50 0\nintr 4\n"
PROC: dict[str, str | None] = {
    "/proc/cpuinfo": "processor\t: 0\nmodel name\t: A CPU\ncpu MHz\t\t: 2000.5\nflags\t\t: fpu\n\n",
    "/proc/loadavg": "1.25 0.50 0.10 2/99 1234\n",
    "/proc/stat": STAT,
    "/proc/self/schedstat": "7000000000 1500000000 33\n",
    "/proc/self/cgroup": "0::/user.slice\n",
    "/sys/fs/cgroup/user.slice/memory.max": "max\n",
}
HIDDEN = "<permission denied>"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n\n"


@dataclass(frozen=True)
class Machine:
    """A difference of a machine: files of /proc and /sys (None: absent), functions, variables.

    The text of a file may be HIDDEN. A variable that is None is not set.
    """

    name: str
    files: Mapping[str, str | None] = field(default_factory=dict)
    functions: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str | None] = field(default_factory=dict)
    encoding: str | None = "utf-8"  # of the standard streams; None: they are closed
    directory: str = "here"
    memory_gib: float | None = None


def fails(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


def cgroup(lines: str, **limits: str) -> dict[str, str | None]:
    own: dict[str, str | None] = {"/sys/fs/cgroup/user.slice/memory.max": None}
    places = {f"/sys/fs/cgroup/{name.replace('__', '/')}": text for name, text in limits.items()}
    return own | places | {"/proc/self/cgroup": lines}


def of(name: str) -> dict[str, str | None]:
    """The files of PROC whose path contains the name, absent."""
    return {path: None for path in PROC if name in path}


def hidden(name: str) -> dict[str, str | None]:
    return dict.fromkeys(of(name), HIDDEN)


UNBOUND = str(2**63 - 4096)
MACHINES = [
    Machine("a laptop: no control group sets a limit"),
    Machine("cgroups v1 with the limit that means none", cgroup(
        "4:memory:/\n0::/\n", **{"memory__memory.limit_in_bytes": UNBOUND})),
    Machine("cgroups v1 with a limit", cgroup(
        "4:memory:/a\n", **{"memory__a__memory.limit_in_bytes": str(4 * GIB)}), memory_gib=4),
    Machine("cgroups v2 with a limit above its own", cgroup(
        "0::/a/b\n", **{"a__b__memory.max": "max", "a__memory.max": str(GIB)}), memory_gib=1),
    Machine("a container whose group is outside of what it sees", cgroup("0::/../../x\n")),
    Machine("cgroups v1, memory beside other controllers", cgroup(
        "4:hugetlb,memory:/a\n", **{"memory__a__memory.limit_in_bytes": str(GIB)}), memory_gib=1),
    Machine("control groups of no known form", cgroup(
        "garbage\n\n7:memory\n0::/a\n", **{"a__memory.max": "much"})),
    Machine("a limit that may not be read", hidden("memory.max")),
    Machine("no control groups", of("cgroup")),
    Machine("control groups hidden", hidden("cgroup")),
    Machine("no /proc, no /sys", of("/"), {"os.getloadavg": fails(OSError())}),
    Machine("a /proc that may not be read", hidden("/"),
            {"os.getloadavg": fails(OSError())}),
    Machine("ARM: neither model name nor cpu MHz", {"/proc/cpuinfo": ARM}),
    Machine("a clock rate in words", {"/proc/cpuinfo": "model name: x\ncpu MHz\t: unknown\n\n"}),
    Machine("no steal column", {"/proc/stat": "cpu  100 10 20 1000 5 1 2\ncpu0 100 10 20 1000\n"}),
    Machine("no scheduler statistics", of("schedstat")),
    Machine("empty files", {"/proc/loadavg": "", "/proc/stat": "", "/proc/cpuinfo": ""}),
    Machine("a load that is hidden", of("loadavg"), {"os.getloadavg": fails(OSError())}),
    Machine("one core", functions={
        "os.cpu_count": lambda: 1, "os.sched_getaffinity": lambda _: {0}}),
    Machine("64 cores, of which 3 may be used", functions={
        "os.cpu_count": lambda: 64, "os.sched_getaffinity": lambda _: {7, 8, 63}}),
    Machine("an unknown number of cores", functions={"os.cpu_count": lambda: None}),
    Machine("4 GiB", functions={"os.sysconf": {"SC_PHYS_PAGES": GIB, "SC_PAGE_SIZE": 4}.get},
            memory_gib=4),
    Machine("no programs: git, unshare, nsys, nvidia-smi", variables={"PATH": ""}),
    Machine("programs that do not start", functions={"subprocess.Popen": fails(PermissionError())}),
    Machine("no home", variables={"HOME": None}, functions={"pwd.getpwuid": fails(KeyError())}),
    Machine("a home that is not there", variables={"HOME": "/no/home", "XDG_CACHE_HOME": None}),
    Machine("a home that may not be written", variables={"HOME": "/proc", "XDG_CACHE_HOME": None}),
    Machine("an XDG directory that is a file", variables={"XDG_CACHE_HOME": "/dev/null"}),
    Machine("no directory for temporary files", variables={"TMPDIR": "/no/tmp"}),
    Machine("a long name of it", variables={"TMPDIR": "/tmp/" + 150 * "x"}),
    Machine("a directory with spaces, quotes and umlauts", directory="it's a \"größer\" $dir"),
    Machine("an odd time zone", variables={"TZ": "Nowhere/<+99>-99"}),
    Machine("an unknown language", variables={"LANG": "xx_YY.nothing", "LC_ALL": None}),
    Machine("the language C, in ASCII", variables={"LC_ALL": "C"}, encoding="ascii"),
    Machine("Latin 1", variables={"LANG": "de_DE.ISO-8859-1"}, encoding="iso-8859-1"),
    Machine("a dumb terminal", variables={"TERM": "dumb", "COLUMNS": "1", "NO_COLOR": ""}),
    Machine("closed streams", encoding=None),
]  # fmt: skip


@pytest.fixture(params=MACHINES, ids=lambda machine: machine.name)
def machine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Machine:
    """This process, on that machine."""
    result: Machine = request.param
    place = tmp_path / result.directory
    place.mkdir()
    monkeypatch.chdir(place)
    simulate_files(PROC | dict(result.files), tmp_path / "system", monkeypatch)
    for name, function in result.functions.items():
        monkeypatch.setattr(name, function)
    for name, value in result.variables.items():
        monkeypatch.delenv(name) if value is None and name in os.environ else None
        monkeypatch.setenv(name, value) if value is not None else None
    # Not of the machine, and slow: vLLM's import, the files of all packages.
    monkeypatch.setattr(doctor, "ENGINE_QUESTION", """print('{"torch": "2", "gpus": []}')""")
    monkeypatch.setattr(packages, "pinned_flaws", lambda: [])
    monkeypatch.setattr(profiler, "PRIVATE", Path("no-nsys"))
    return result


def simulate_files(
    texts: Mapping[str, str | None], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let /proc and /sys be what `texts` says, for everything that Python opens or lists."""
    for path, text in texts.items():
        if text is not None and text != HIDDEN:
            (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
            (root / path[1:]).write_text(text)

    def place(path: Any) -> Any:
        named = os.fspath(path) if isinstance(path, str | os.PathLike) else None
        if named is None or not named.startswith(("/proc", "/sys")):
            return path
        if texts.get(named) == HIDDEN:
            raise PermissionError(1, "Operation not permitted", named)
        return root / named[1:]

    for module, name in ((io, "open"), (builtins, "open"), *((os, n) for n in ("stat", "listdir"))):
        true = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda path, *a, _true=true, **k: _true(place(path), *a, **k)
        )


def answer(machine: Machine, *words: str) -> tuple[int, str, str]:
    """A command's exit code there, and what it prints; nothing to streams that are closed."""
    names = ("stdin", "stdout", "stderr")
    if machine.encoding is None:
        with pytest.MonkeyPatch.context() as patch:
            for name in names:
                patch.setattr(sys, name, None)
            return cli.main(words), "", ""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=machine.encoding) for _ in names]
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in zip(names, streams, strict=True):
            patch.setattr(sys, name, stream)
        code = cli.main(words)
    said = (bytes(stream.detach().getvalue()).decode(machine.encoding) for stream in streams)
    return code, *tuple(said)[1:]  # type: ignore[return-value]


@pytest.mark.thorough
def test_it_is_planned_there(machine: Machine) -> None:
    code, out, _ = answer(machine, *PLAN)
    assert code == EXIT_DONE
    assert ("1 experiment on device=cpu" in out) == (machine.encoding is not None)


@pytest.mark.thorough
def test_the_doctor_has_a_line_for_each_check_there(machine: Machine) -> None:
    code, out, error = answer(machine, "doctor")
    assert code in (EXIT_DONE, EXIT_FAILED)
    names = {line[:24].split()[1] for line in out.splitlines() if line[0] in "op"}
    assert {"Python", "disk", "cores"} <= names or machine.encoding is None
    assert error == ""


@pytest.mark.thorough
def test_its_memory_and_its_load_are_known_or_null(machine: Machine) -> None:
    gib = resources.machine_gib()
    assert isfinite(gib)
    assert gib == machine.memory_gib or (machine.memory_gib is None and gib > 0)
    HardwareRecord.model_validate(provenance.hardware())
    LoadRecord.model_validate({"repeat": 0} | load_between(read_cpu_time(), read_cpu_time()))
    assert provenance.source_commit() is None or provenance.source_commit()


@pytest.mark.parametrize("stream", [1, 2])
@pytest.mark.parametrize("code", [0, 128])
@pytest.mark.parametrize("words", ["fatal: bad object HEAD", "deprecated", "v0.1 \\351"])
def test_an_error_of_git_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: int, code: int, words: str
) -> None:
    program = tmp_path / "git"
    program.write_text(f"#!/bin/sh\nprintf '{words}\\n' >&{stream}; exit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.source_commit() is None


@pytest.mark.parametrize("home", [{}, {"HOME": "/no/home"}, {"XDG_CACHE_HOME": "/dev/null"}])
def test_a_page_needs_no_home(
    home: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in home.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pwd.getpwuid", fails(KeyError()))
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda _: "vega")
    assert render.scripts.__wrapped__() == "vega"
    assert os.listdir(tmp_path) == []


def test_a_process_ends_where_others_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (PermissionError(), psutil.AccessDenied(), psutil.NoSuchProcess(1)):
        monkeypatch.setattr(psutil.Process, "children", fails(error))
        process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        kill(process)
        assert process.returncode == -9


@pytest.mark.parametrize("name", ["it's here", 'a "$(false)" b', "größer & kleiner"])
def test_make_works_in_a_directory_of_any_name(name: str, tmp_path: Path) -> None:
    place = tmp_path / name
    (place / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(CONFIG.parent / "Makefile", place)
    tool = place / ".venv" / "bin" / "snakemake"
    tool.write_text('#!/bin/sh\necho "$XDG_CACHE_HOME"\n')
    tool.chmod(0o755)
    (tool.parent / "kvscope").symlink_to("/bin/true")
    words = ["make", "-s", "demo", "-o", "env", "-o", "try-nsys"]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"{place}/.cache"


COMPILE = """
import pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.py")):
    compile(path.read_bytes(), str(path), "exec")
"""


@pytest.mark.parametrize("python", ["python3.12", "python3.13"])
def test_later_pythons_compile_the_sources_without_a_warning(python: str) -> None:
    words = [python, "-W", "error", "-c", COMPILE, str(CONFIG.parent / "src")]
    if not shutil.which(python) or subprocess.run([python, "-c", ""]).returncode:
        # kvscope runs with 3.11; other tests check that later versions compile it.
        pytest.skip(f"{python} is not installed")
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def command(*words: str) -> str:
    return " ".join((f"'{sys.executable}'", "-m", "kvscope.cli", *words))


def shell(line: str) -> "subprocess.CompletedProcess[str]":
    """Run a line of the shell, with buffered streams as users have them."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=kept)


def test_output_to_a_full_disk_is_an_error() -> None:
    done = shell(f"{command(*PLAN)} >/dev/full")
    assert (done.returncode, done.stderr) == (EXIT_FAILED, "kvscope: No space left on device\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_may_be_closed(closed: str) -> None:
    assert shell(f"{command('--version')} {closed}").returncode == EXIT_DONE


@contextmanager
def full_disk() -> Any:
    """No file can grow, as for a user whose quota is used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    "words",
    [
        [*PLAN, "--write", "results"],
        ["new", "mine"],
    ],
)
def test_a_command_that_cannot_write_fails_and_leaves_nothing(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with full_disk():
        code = cli.main(words)
    assert code == EXIT_FAILED
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "cannot be written (File too large)" in sentence
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
