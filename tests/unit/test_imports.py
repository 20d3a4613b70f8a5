"""Imports that `lint-imports` and `deptry` do not see: those at run time, and the pins."""

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = ROOT / "src" / "kvscope"
ROOM = SOURCE / "engine" / "vllm"
VLLMS = re.compile(r"^vllm(\.\w+)+([.:]\w+)*$|^\s*(from|import) vllm\b", re.M)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "module",
    [
        *("cli.main", "plan.grid", "tables.results", "collect.collector", "metrics.experiment"),
        "report.study",
    ],
)
def test_importing_the_reading_side_loads_no_vllm(module):
    program = f"import sys, kvscope.{module}; print({{'torch', 'vllm'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def names_of_vllms(path: Path) -> list[str]:
    """Imports of vLLM by a module, also for type checkers, and its strings that name such
    modules."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    imports = [each for each in nodes if isinstance(each, ast.Import | ast.ImportFrom)]
    constants = [each.value for each in nodes if isinstance(each, ast.Constant)]
    words = [
        *map(ast.unparse, imports),
        *(constant for constant in constants if isinstance(constant, str)),
    ]
    return [one for one in words if VLLMS.search(one)]


def test_only_its_room_names_vllms_modules():
    """`lint-imports` does not see imports by name."""
    others = [path for path in SOURCE.rglob("*.py") if ROOM not in path.parents]
    assert {path.name: result for path in others if (result := names_of_vllms(path))} == {}
    assert any(names_of_vllms(path) for path in ROOM.rglob("*.py"))


def test_importing_the_versions_of_vllm_imports_the_standard_library_alone():
    program = (
        "import sys; known = {*sys.modules};"
        "import kvscope.engine.vllm.versions, kvscope.engine.vllm.servers;"
        "import kvscope.engine.vllm.preload;"
        "names = {name.partition('.')[0] for name in {*sys.modules} - known};"
        "print(names - sys.stdlib_module_names)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "{'kvscope'}", done.stderr


def circle(graph: grimp.ImportGraph) -> list[str]:
    """Modules that import each other in a circle; empty if there is none."""
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        result: list[str] = error.args[1]
        return result
    return []


@pytest.mark.packages
def test_no_modules_import_one_another_in_a_circle():
    """Imports in functions and those for type checkers count."""
    packages = [one.name.replace("-", "_") for one in (ROOT / "packages").glob("kvscope-*")]
    assert len(packages) >= 5
    assert circle(grimp.build_graph("kvscope", *packages, cache_dir=None)) == []


def test_a_circle_that_only_a_type_checker_walks_is_found(tmp_path, monkeypatch):
    package = tmp_path / "round_trip"
    package.mkdir()
    later = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import round_trip.there\n"
    for name, text in {"__init__": "", "here": later, "there": "import round_trip.here\n"}.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    result = circle(grimp.build_graph("round_trip", cache_dir=None))
    assert set(result) == {"round_trip.here", "round_trip.there"}


def test_every_dependency_is_pinned():
    declared = {re.findall(r"[\w-]+", text)[0].lower() for text in PROJECT["dependencies"]}
    pins = "".join(path.read_text() for path in (ROOT / "envs").glob("*.txt")).lower()
    assert declared == {name for name in declared if f"\n{name}==" in pins}
