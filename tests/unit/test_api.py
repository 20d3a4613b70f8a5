"""`kvscope.api`: few names, none of them idle, and cheap to import face by face."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from pkgutil import iter_modules

import pytest

from kvscope import api
from kvscope.tables import TABLES

ROOT = Path(__file__).parents[2]
FACES = [found.name for found in iter_modules(api.__path__)]
PACKAGES = sorted(path.name for path in ROOT.glob("packages/kvscope-*"))
"""Packages that import nothing else of kvscope."""
MOST_NAMES = 120
OF_VLLM = {"vllm", "vllm_facts"}
"""Faces that are for processes of vLLM alone."""
LIGHT = ("commands", "errors", "files", "recording", "servers", "words")
"""Faces that are imported whenever `kvscope` starts, or in a server that is recorded."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> tuple[tuple[str, str], ...]:
    """Module and name of all that a file imports of kvscope, for type checkers and in functions."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found = [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found = [(alias.name, "") for alias in node.names]
        else:
            continue
        yield from (one for one in found if one[0].split(".")[0] == "kvscope")


def source(face: str) -> ast.Module:
    """The source of a face, which is not imported: one of them imports vLLM."""
    return ast.parse((Path(api.__path__[0]) / f"{face}.py").read_text(encoding="utf-8"))


def exported(face: str) -> list[str]:
    """The names of a face."""
    (names,) = (
        node.value
        for node in source(face).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return list(ast.literal_eval(names))


def test_it_has_few_names() -> None:
    names = [(face, name) for face in FACES for name in exported(face)]
    assert len(names) == len({*names}) <= MOST_NAMES


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_nothing_else(package: str) -> None:
    sources = ROOT.glob(f"packages/{package}/src/**/*.py")
    found = {of for path in sources for of, _ in imports(path)}
    assert found
    assert found <= {f"kvscope.api.{face}" for face in FACES}


@pytest.mark.parametrize("face", FACES)
def test_a_face_has_no_name_that_no_package_imports(face: str) -> None:
    sources = [*ROOT.glob("packages/kvscope-*/src/**/*.py"), *ROOT.glob("tests/toys/*.py")]
    used = {name for path in sources for of, name in imports(path) if of == f"kvscope.api.{face}"}
    assert {*exported(face)} == used


def attributes(path: Path) -> Iterator[tuple[str, str]]:
    """Face and attribute of what a file takes of the modules that a face has as names."""
    tree = parsed(path)
    known = {
        alias.asname or alias.name: node.module.rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvscope.api.")
        for alias in node.names
        if node.module and alias.name.islower()  # a module, or a function
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name(name), attribute) if name in known:
                yield known[name], attribute


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_takes_of_a_module_is_in_the_docstring_of_its_face(package: str) -> None:
    sources = ROOT.glob(f"packages/{package}/src/**/*.py")
    for face, name in {found for path in sources for found in attributes(path)}:
        table = face == "tables" and name.lower() in TABLES
        assert table or f"`{name}`" in str(ast.get_docstring(source(face))), f"{face}: {name}"


@pytest.mark.thorough
@pytest.mark.parametrize("face", sorted({*FACES} - OF_VLLM))
def test_importing_a_face_costs_no_more_than_its_names(face: str) -> None:
    heavy = {"torch", "vllm"}
    if face in LIGHT:
        heavy |= {"numpy", "pandas", "pydantic", "hydra", "jinja2"}
    program = f"import sys, kvscope.api.{face}; print({heavy!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr
