"""Options of another package that are broken: one sentence with option, package and error."""

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvscope.base import plugins
from kvscope.base.errors import EXIT_BAD_INPUT, EXIT_DONE, BadInput
from kvscope.cli import main as cli
from kvscope.cli import workflow
from kvscope.plan import registry

CONFIG = Path(__file__).parents[2] / "config"
CACHES = (
    *(plugins.names, plugins.find),
    *(registry.find_registered, registry.load_all, registry.label),
)
IMPORTS = """
from kvscope.plan.device import Device
from kvscope.plan.devices.cpu import Cpu
from kvscope.plan.policy import Batching, Overflow
from kvscope.plan.workload import Lengths, Workload
"""

pytestmark = pytest.mark.thorough

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package of one option, named faulty: its kind, and the text of its module."""

    def as_pip_does(kind: str, text: str) -> None:
        record = tmp_path / "faults-0.1.dist-info"
        record.mkdir()
        (record / "METADATA").write_text("Metadata-Version: 2.1\nName: faults\nVersion: 0.1\n")
        module = f"faults_{abs(hash(text))}"
        points = f"[kvscope.{kind}]\nfaulty = {module}:Faulty\n"
        (record / "entry_points.txt").write_text(points)
        (tmp_path / f"{module}.py").write_text(IMPORTS + textwrap.dedent(text))
        monkeypatch.syspath_prepend(str(tmp_path))
        for cached in CACHES:
            cached.cache_clear()

    yield as_pip_does
    monkeypatch.undo()
    for cached in CACHES:
        cached.cache_clear()


def method(base: str, name: str, body: str) -> str:
    return f"class Faulty({base}):\n    def {name}: {body}\n"


INIT = "__init__(self, **keys)"
# Kind, module, and the error as the sentence tells it.
FAULTS = [
    ("overflow", method("Overflow", INIT, "raise RuntimeError('no\\nluck')"), "RuntimeError: no l"),
    ("batching", method("Batching", INIT, "raise ValueError('no luck')"), "ValueError: no luck"),
    ("device", method("Cpu", INIT, "raise KeyError('luck')"), "KeyError: 'luck'"),
    ("overflow", method("Overflow", INIT, "raise SystemExit(0)"), "SystemExit: 0"),
    ("overflow", method("Overflow", "check(self, _)", "open('/no/file')"), "FileNotFoundError"),
    ("overflow", method("Overflow", "pool_blocks(self, _)", "return None"), "TypeError: unsupp"),
    ("workload", method("Workload", "lengths(self, seed)", "return seed[0]"), "TypeError: 'int'"),
    ("workload", "class Faulty(Workload): pass", "lacks lengths of kvscope.plan.workload.Workload"),
    ("device", "class Faulty(Device): pass", "lacks platform, speed of kvscope.plan.device.Device"),
    ("device", "Faulty = 5", "must be a subclass of kvscope.plan.device.Device"),
    ("batching", "import no_such_module", "No module named 'no_such_module'"),
    ("overflow", "def f(:", "SyntaxError: invalid syntax"),
    ("workload", "raise SystemExit(3)", "SystemExit: 3"),
    ("batching", "", "has no attribute 'Faulty'"),
]


@pytest.mark.parametrize(("kind", "text", "error"), FAULTS)
def test_a_fault_is_a_sentence_that_names_option_package_and_error(
    kind: str, text: str, error: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(kind, text)
    code = cli.main(["plan", f"{kind}=faulty", "--config-dir", str(CONFIG)])
    output = capsys.readouterr()
    assert (code, output.out) == (EXIT_BAD_INPUT, ""), output
    (sentence,) = output.err.splitlines()
    assert error in sentence
    assert "faulty" in sentence
    assert "faults" in sentence


def test_a_workload_without_requests_is_refused(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("workload", method("Workload", "lengths(self, seed)", "return []"))
    assert cli.main(["plan", "workload=faulty", "--config-dir", str(CONFIG)]) == EXIT_BAD_INPUT
    assert capsys.readouterr().err == "kvscope: workload=faulty has no requests\n"


def test_others_are_planned_beside_a_faulty_one(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("overflow", "raise RuntimeError('no luck')")
    assert cli.main(["plan", "--config-dir", str(CONFIG)]) == EXIT_DONE


def test_the_workflow_says_so_too(install: Install, tmp_path: Path) -> None:
    install("overflow", method("Overflow", INIT, "raise RuntimeError('no luck')"))
    options = workflow.Options(None, ("overflow=faulty",))
    with pytest.raises(BadInput, match=r"overflow=faulty of faults 0\.1.*RuntimeError: no luck"):
        workflow.plan(options, CONFIG, tmp_path)


def test_an_error_of_kvscope_is_not_blamed_on_an_option() -> None:
    with pytest.raises(RuntimeError) as found:
        raise RuntimeError("a defect")
    assert registry.fault_of_option(found.value) is None
