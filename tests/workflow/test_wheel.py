"""The wheel, installed where there is no checkout, brings all that a user needs."""

import os
import re
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvscope.files import read_json

ROOT = Path(__file__).parents[2]
# What a source of kvscope is made of; a checkout has results and environments besides.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src")
LINKED = ("config", "envs", "profiles", "workflow", "Snakefile")
TINY = (
    *("workload.num_requests=2", "workload.prompt_tokens=32", "workload.output_tokens=8"),
    *("repeats=1", "warmup=0", "profiler=none"),
)


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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built offline from a copy of the sources."""
    directory = tmp_path_factory.mktemp("sources")
    for name in (*SOURCES, *LINKED):
        copy(name, directory)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", ".", cwd=directory)
    (built,) = (directory / "dist").glob("kvscope-*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in an environment whose other packages are those of this one."""
    made = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(made, symlinks=True)
    python = str(made / "bin" / "python")
    pip("--python", python, "install", "--no-deps", str(wheel), cwd=made.parent)
    (packages,) = made.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text("\n".join(p for p in sys.path if "-packages" in p))
    return made


@pytest.fixture
def installed(environment: Path, tmp_path: Path) -> Installation:
    return Installation(environment, tmp_path)


def test_it_is_the_wheels_code_that_runs(installed: Installation) -> None:
    done = installed.run("python", "-c", "import kvscope; print(kvscope.__file__)")
    assert Path(done.stdout).is_relative_to(installed.venv)
    assert Path(installed.kvscope("shipped").strip()).is_relative_to(installed.venv)


def test_it_ships_what_the_checkout_has(installed: Installation) -> None:
    shipped = Path(installed.kvscope("shipped").strip())
    for name in LINKED:
        files = [p for p in (ROOT / name, *(ROOT / name).rglob("*")) if p.is_file()]
        for path in files:
            if "__pycache__" not in path.parts:
                assert (shipped / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
    assert not any(path.is_symlink() for path in shipped.rglob("*"))


def test_plans_of_shipped_studies_and_of_ones_own(installed: Installation) -> None:
    assert "9 experiments" in installed.kvscope("plan", "study=quickstart")
    assert installed.kvscope("new", "mine").startswith("config/study/mine.yaml\n")
    assert "4 experiments" in installed.kvscope("plan", "study=mine")
    own = installed.directory / "config" / "model" / "small.yaml"
    own.parent.mkdir()
    own.write_text("defaults: [tiny-llama, _self_]\nname: small\nlayers: 1\n")
    assert "small-" in installed.kvscope("plan", "study=mine", "model=small")
    assert "9 experiments" in installed.kvscope("plan", "study=quickstart")


@pytest.mark.workflow
def test_the_workflow_finds_studies_of_ones_own(installed: Installation, require) -> None:
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
    program = "import sys; sys.modules['vllm'] = None; import kvscope.cli as c; sys.exit(c.main())"
    done = installed.run("python", "-c", program, "run", *TINY, "--out", "mine")
    assert done.returncode == 2
    assert done.stderr.startswith("kvscope: runs need vLLM")
    assert done.stderr.count("\n") == 1
    (requirements,) = re.findall(r"\S+/cpu\.txt", done.stderr)
    assert Path(requirements).is_file()
    assert read_json(installed.directory / "mine" / "run.json")["status"] == "failed"


@pytest.mark.engine
def test_a_run_becomes_a_page(installed: Installation, require) -> None:
    require("vLLM", find_spec("vllm") is not None, "run `make env`")
    installed.kvscope("run", *TINY, "--out", "mine")
    installed.kvscope("collect", "mine", "--perfetto")
    assert "throughput" in installed.kvscope("analyse", "mine")
    assert "0 violated" in installed.kvscope("check", "mine")
    page = (installed.directory / installed.kvscope("report", "mine").splitlines()[0]).read_text()
    assert "<script>" in page
    assert "<style>" in page
