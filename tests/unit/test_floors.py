"""Imports point down only, and the reading side needs neither torch nor vllm."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kvscope

SOURCE = Path(kvscope.__file__).parent
GROUND = {
    *("arraytypes", "layout", "passes", "results"),
    *("errors", "files", "tables", "events", "ranges", "stalls", "due", "limits", "reading"),
    *(
        "actions",
        "copies",
        "disturbed",
        "machine",
        "runfile",
        "runschema",
        "accounts",
        "paper",
        "oracle",
        "interval",
        "rounds",
    ),
}
# What each part may import beside itself and the ground floor.
ALLOWED = {
    "plan": set(),
    "workload": {"plan"},
    "engine": {"plan"},
    "offload": {"engine", "plan"},
    "run": {"engine", "workload", "plan"},
    "collect": set(),
    "analyse": {"collect", "plan", "workload"},
    "report": {"analyse", "collect", "plan"},
    "cluster": {"plan"},
}
MAY_USE_VLLM = {"engine", "run"}
MAY_USE_TORCH = MAY_USE_VLLM | {"offload"}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


MODULES = [p for p in sorted(SOURCE.rglob("*.py")) if part_of(p) in ALLOWED]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path):
    own = part_of(path)
    parts = {n.split(".")[1] for n in imports(path) if n.startswith("kvscope.") and "." in n}
    parts -= {"__version__"}
    assert parts <= GROUND | {own} | ALLOWED[own]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_what_computes_knows_torch_and_vllm(path):
    names = {n.split(".")[0] for n in imports(path)}
    assert "torch" not in names or part_of(path) in MAY_USE_TORCH
    assert "vllm" not in names or part_of(path) in MAY_USE_VLLM


def test_the_ground_floor_imports_nothing_above_it():
    for name in GROUND:
        parts = {n.split(".")[1] for n in imports(SOURCE / f"{name}.py") if "kvscope." in n}
        assert parts <= GROUND


@pytest.mark.parametrize(
    "module",
    [
        *("cli", "plan.grid", "results", "collect.collector", "analyse.experiment"),
        *("report.study", "offload.simulation", "offload.policies.hybrid"),
    ],
)
def test_importing_the_reading_side_loads_no_vllm(module):
    program = f"import sys, kvscope.{module}; print({{'torch', 'vllm'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr
