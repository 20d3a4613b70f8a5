"""Fixtures and hooks of all tests: components that a user's machine may lack, and CI's must
have."""

import os
import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvscope.run.profiler import Nsys, find_nsys
from tests.warm import Warm

# A shell starts a background job with interrupts ignored, and so would every program of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

Require = Callable[[str, bool, str], None]
PACKAGES = [path.name for path in (Path(__file__).parents[1] / "packages").glob("kvscope-*")]


def go_on_only_with(component: str, present: bool, sentence: str) -> None:
    """Go on only if the component is here.

    Its absence skips the test on a user's machine and fails it where CI=true.
    """
    if present:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{component} is missing, and CI must have it: {sentence}")
    # A laptop without nsys or Slurm can still test the rest.
    pytest.skip(f"{component} is missing: {sentence}")


@pytest.fixture(scope="session")
def require() -> Require:
    """`require(component, present, sentence)`: see `go_on_only_with`."""
    return go_on_only_with


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail tests marked `packages` if a package of this repository is missing."""
    if item.get_closest_marker("packages"):
        missing = [name for name in PACKAGES if find_spec(name.replace("-", "_")) is None]
        go_on_only_with(", ".join(missing), not missing, "run `make env-dev`")


@pytest.fixture(scope="session")
def nsys(require: Require) -> Nsys:
    """The nsys that runs would use."""
    result = find_nsys()
    require("Nsight Systems", result is not None, "run `make nsys`")
    assert result is not None
    return result


@pytest.fixture(scope="session")
def triton(require: Require, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Triton is here, and keeps what it compiles to these tests."""
    present = find_spec("triton") is not None
    require("Triton", present, "run `pip install --no-deps -r envs/dev.txt`")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory, require: Require) -> Warm:
    """A process that has imported vLLM, to be forked; one for all workers of a parallel run."""
    require("vLLM", find_spec("vllm") is not None, "run `make env`")
    return start_warm(tmp_path_factory)


def start_warm(tmp_path_factory: pytest.TempPathFactory) -> Warm:
    directory = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        return Warm(directory.parent / "warm", of=os.getppid())
    return Warm(directory / "warm", of=os.getpid())


@pytest.fixture(scope="session", autouse=True)
def warming(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It imports vLLM from the start, beside the first tests, if any test needs it."""
    wanted = any("warm" in getattr(item, "fixturenames", ()) for item in request.session.items)
    if wanted and find_spec("vllm") is not None:
        start_warm(tmp_path_factory)


@pytest.fixture(scope="module")
def forked(warm: Warm) -> Iterator[None]:
    """Measured processes that this module starts are forks of the warm process."""
    yield from _with(warm.variables)


@pytest.fixture(scope="module")
def forked_commands(warm: Warm) -> Iterator[None]:
    """`kvscope` and `snakemake` are forks of the warm process, too."""
    yield from _with(warm.commands)


def _with(variables: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvscope")
    group.addoption(
        "--policy-models",
        default="tiny-llama,tiny-gqa",
        help="models whose tokens are compared under all policies",
    )
    group.addoption(
        "--policy-seeds", default="0-2", metavar="FIRST-LAST", help="their random workloads"
    )


@pytest.hookimpl(trylast=True)  # the reporter is registered before
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None and os.environ.get("CI") == "true":
        config.pluginmanager.register(FailuresAtOnce(terminal))


class FailuresAtOnce:
    """Shows each failure when it happens: a run that is cut off has said which tests failed."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            end = report.longreprtext[-1500:]
            self.terminal.write_line(f"\nFAILED so far: {report.nodeid} ({report.when})\n{end}")
