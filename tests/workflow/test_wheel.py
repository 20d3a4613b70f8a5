"""The wheels, installed where there is no checkout, bring all that a user needs.

kvscope's works alone, and those of the packages that extend it beside it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kvscope.base.files import read_json
from kvscope.plan.grid import expand
from kvscope.plan.layers import SHIPPED_CONFIG

ROOT = Path(__file__).parents[2]
# Sources of kvscope; a checkout also has results and environments.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src")
LINKED = ("config", "envs", "profiles", "workflow", "Snakefile", "CITATION.cff")
EXTENSIONS = sorted(f"packages/{path.name}" for path in ROOT.glob("packages/kvscope-*"))
TINY = (
    *("workload.num_requests=2", "workload.prompt_tokens=32", "workload.output_tokens=8"),
    *("repeats=1", "profiler=none"),
)
COLD = (*TINY, "warmup=0")


def without(words: str) -> dict[str, str]:
    """This environment without some variables."""
    return {name: value for name, value in os.environ.items() if name not in words.split()}


def copy(name: str, directory: Path) -> None:
    source = ROOT / name
    if source.is_dir():
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(source, directory / name, symlinks=True, ignore=ignored)
    else:
        shutil.copy(source, directory / name)


def pip(*words: str, cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words],
        cwd=cwd,
        env=without("PYTHONPATH"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass(frozen=True)
class Installation:
    """An environment with kvscope's wheel in it, and an empty directory to work in."""

    venv: Path
    directory: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.venv / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            words,
            cwd=self.directory,
            env=without("PYTHONPATH VIRTUAL_ENV") | {"PATH": path},
            capture_output=True,
            text=True,
        )

    def kvscope(self, *words: str) -> str:
        done = self.run("kvscope", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def build(sources: Path) -> Path:
    """The wheel of a directory of sources, built offline."""
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", ".", cwd=sources)
    (built,) = (sources / "dist").glob("kvscope*.whl")
    return built


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the wheels are built from."""
    directory = tmp_path_factory.mktemp("sources")
    for name in (*SOURCES, *LINKED, *EXTENSIONS):
        copy(name, directory)
    return directory


@pytest.fixture(scope="module")
def wheel(sources: Path) -> Path:
    """kvscope's wheel."""
    return build(sources)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of this environment but for kvscope and what extends it."""
    directory = tmp_path_factory.mktemp("others")
    for place in (Path(path) for path in sys.path if "-packages" in path):
        for path in place.iterdir():
            link = directory / path.name
            if not path.name.startswith(("kvscope", "__editable__")) and not link.exists():
                link.symlink_to(path)
    return directory


def environment(directory: Path, others: Path, *wheels: Path) -> Path:
    """The wheels in an environment whose other packages are those of this environment."""
    made = directory / "venv"
    venv.create(made, symlinks=True)
    python = str(made / "bin" / "python")
    pip("--python", python, "install", "--no-deps", *map(str, wheels), cwd=directory)
    (packages,) = made.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(str(others))
    return made


@pytest.fixture(scope="module")
def alone(wheel: Path, others: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("alone"), others, wheel)


@pytest.fixture
def installed(alone: Path, tmp_path: Path) -> Installation:
    """kvscope alone."""
    return Installation(alone, tmp_path)


@pytest.fixture(scope="module")
def together(
    sources: Path, wheel: Path, others: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    built = [build(sources / name) for name in EXTENSIONS]
    return environment(tmp_path_factory.mktemp("together"), others, wheel, *built)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXTENSIONS)
def test_each_package_works_alone_beside_kvscope(
    sources: Path, wheel: Path, others: Path, tmp_path: Path, name: str
) -> None:
    """It adds its commands, and kvscope does not mention packages that are not installed."""
    added = Installation(environment(tmp_path, others, wheel, build(sources / name)), tmp_path)
    done = added.run("kvscope", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    project = tomllib.loads((ROOT / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for command in project["entry-points"].get("kvscope.command", {}):
        assert re.search(rf"^ +{command}\s", done.stdout, re.M), command
        assert added.kvscope(command, "--help")
    assert "11 experiments" in added.kvscope("plan", "study=batching-cpu")


def test_kvscope_alone_has_no_command_of_another_package(installed: Installation) -> None:
    words = installed.kvscope("--help").split()
    assert "plan" in words
    assert not {"submit", "calibrate", "explain", "record", "rehearse", "score"} & {*words}


@pytest.fixture
def extended(together: Path, tmp_path: Path) -> Installation:
    """kvscope and the packages that extend it."""
    return Installation(together, tmp_path)


def test_it_is_the_wheels_code_that_runs(installed: Installation) -> None:
    done = installed.run("python", "-c", "import kvscope; print(kvscope.__file__)")
    assert Path(done.stdout).is_relative_to(installed.venv)
    assert Path(installed.kvscope("shipped").strip()).is_relative_to(installed.venv)


def test_it_ships_the_files_of_the_checkout(installed: Installation) -> None:
    shipped = Path(installed.kvscope("shipped").strip())
    for name in LINKED:
        files = [p for p in (ROOT / name, *(ROOT / name).rglob("*")) if p.is_file()]
        for path in files:
            if "__pycache__" not in path.parts:
                assert (shipped / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
    assert not any(path.is_symlink() for path in shipped.rglob("*"))


def test_plans_of_shipped_studies_and_of_the_users(installed: Installation) -> None:
    assert "11 experiments" in installed.kvscope("plan", "study=batching-cpu")
    assert installed.kvscope("new", "mine").startswith("config/study/mine.yaml\n")
    assert "4 experiments" in installed.kvscope("plan", "study=mine")
    own = installed.directory / "config" / "model" / "small.yaml"
    own.parent.mkdir()
    own.write_text("defaults: [tiny-llama, _self_]\nname: small\nlayers: 1\n")
    assert "small-" in installed.kvscope("plan", "study=mine", "model=small")
    assert "11 experiments" in installed.kvscope("plan", "study=batching-cpu")


@pytest.mark.workflow
def test_the_workflow_finds_studies_of_the_user(installed: Installation, require) -> None:
    require("Snakemake", find_spec("snakemake") is not None, "run `make env`")
    installed.kvscope("new", "mine")
    shipped = Path(installed.kvscope("shipped").strip())
    words = ["--snakefile", str(shipped / "Snakefile"), "--profile", f"{shipped}/profiles/local"]
    done = installed.run(
        *(
            "python",
            "-m",
            "snakemake",
            *words,
            "--config",
            "study=mine",
            "--dry-run",
            "--quiet",
            "host",
        )
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"run_experiments +1\b", done.stdout)
    assert len(list(installed.directory.glob("results/experiments/*/experiment.yaml"))) == 4


def test_without_vllm_a_run_says_what_to_install(installed: Installation) -> None:
    program = (
        "import sys; sys.modules['vllm'] = None; import kvscope.cli.main as c; sys.exit(c.main())"
    )
    done = installed.run("python", "-c", program, "run", *COLD, "--out", "mine")
    assert done.returncode == 2
    assert done.stderr.startswith("kvscope: runs need vLLM")
    assert done.stderr.count("\n") == 1
    (requirements,) = re.findall(r"\S+/cpu\.txt", done.stderr)
    assert Path(requirements).is_file()
    assert read_json(installed.directory / "mine" / "run.json")["status"] == "failed"


def page(installation: Installation, *words: str) -> str:
    """The page of a run with these settings, which holds every oracle."""
    installation.kvscope("run", *words, "--out", "mine")
    installation.kvscope("collect", "mine", "--perfetto")
    assert "throughput" in installation.kvscope("analyse", "mine")
    assert "0 violated" in installation.kvscope("check", "mine")
    path = installation.kvscope("report", "mine").splitlines()[0]
    return (installation.directory / path).read_text()


@pytest.mark.engine
@pytest.mark.parametrize("device", ["cpu", "dry"])
def test_a_run_becomes_a_page(installed: Installation, require: Any, device: str) -> None:
    require("vLLM", find_spec("vllm") is not None, "run `make env`")
    result = page(installed, *COLD, f"device={device}")
    assert "<script>" in result
    assert "<style>" in result


@pytest.mark.parametrize(
    ("study", "package"), [("hybrid", "kvscope-offload"), ("paper", "kvscope-paper")]
)
def test_studies_come_with_the_packages_that_extend_kvscope(
    installed: Installation, extended: Installation, study: str, package: str
) -> None:
    refused = installed.run("kvscope", "plan", f"study={study}")
    assert refused.returncode == 2
    assert f"study is '{study}' but the package {package}, which brings it" in refused.stderr
    here = expand(study, [], SHIPPED_CONFIG).experiments
    there = json.loads(extended.kvscope("plan", f"study={study}", "--json"))
    assert [entry["id"] for entry in there] == [planned.experiment.id for planned in here]


@pytest.mark.engine
def test_a_run_of_a_package_becomes_a_page_with_its_figures(
    extended: Installation, require: Any
) -> None:
    require("vLLM", find_spec("vllm") is not None, "run `make env`")
    result = page(extended, "device=offload_modeled", "model=opt-6.7b", *TINY)
    assert "Pipeline of a decoding pass" in result
