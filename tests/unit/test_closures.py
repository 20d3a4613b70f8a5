"""The budgets of what must be read to change one thing."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "read_whole"


@pytest.fixture(scope="module")
def closures() -> ModuleType:
    spec = spec_from_file_location("closures", ROOT / "bench" / "closures.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def package(closures, tmp_path, monkeypatch):
    """policy (4 lines) imports typed, typed imports lazy, lazy imports base; other is apart."""
    modules = {
        "__init__": "",
        "policy": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
        f"    from {PACKAGE} import typed\n",
        "typed": f"def f():\n    import {PACKAGE}.lazy\n",
        "lazy": f"from {PACKAGE}.base import ONE\n",
        "base": '"""A docstring counts."""\n\nONE = 1  # and a comment\n',
        "other": f"import {PACKAGE}.policy\n" * 9,
    }
    for name, text in modules.items():
        (tmp_path / PACKAGE).mkdir(exist_ok=True)
        (tmp_path / PACKAGE / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield closures.Closures(PACKAGE)
    sys.modules.pop(PACKAGE, None)


def test_imports_in_functions_and_for_type_checkers_count_and_those_of_importers_do_not(package):
    names = {f"{PACKAGE}.{name}" for name in ("policy", "typed", "lazy", "base")}
    assert package.of(f"{PACKAGE}.policy") == names
    assert package.size(f"{PACKAGE}.policy") == 4 + 2 + 1 + 3


def test_a_closure_lists_the_importers_of_each_module(package):
    lines = list(package.listing(f"{PACKAGE}.policy"))
    assert lines[0].split() == ["4", f"{PACKAGE}.policy"]
    assert [line.split()[1:] for line in lines if "base" in line.split()[1]] == [
        [f"{PACKAGE}.base", f"{PACKAGE}.lazy"]
    ]


@pytest.mark.parametrize(
    ("allowed", "target", "fault"),
    [
        (1500, 1000, ""),
        (1600, 1000, ""),  # a little below
        (1499, 1000, "has 1,500 lines, 1,499 are allowed"),
        (1601, 1000, "write `allowed: 1500`"),
        (1600, 1600, ""),  # met
        (1900, 1600, "write `allowed: 1600`"),
    ],
)
def test_a_budget_is_neither_exceeded_nor_left_high(closures, allowed, target, fault):
    result = closures.Budget("policy", allowed, target).fault("a.b", 1500)
    assert fault in result
    assert bool(result) == bool(fault)


def test_the_table_names_every_budget_and_a_module_that_is_gone_is_a_fault(closures, package):
    budgets = [
        closures.Budget("policy", 10, 10, module=f"{PACKAGE}.policy"),
        closures.Budget("oracle", 10, 10, module=f"{PACKAGE}.gone"),
    ]
    table, faults = closures.judge(budgets, package)
    assert [line.split() for line in table[1:]] == [
        ["policy", f"{PACKAGE}.policy", "10", "10", "10"]
    ]
    assert faults == [f"oracle: there is no module {PACKAGE}.gone; name one of its kind"]


@pytest.mark.parametrize(("allowed", "code"), [(10, 0), (9, 1)])
def test_the_command_fails_if_a_budget_does(
    closures, package, tmp_path, monkeypatch, capsys, allowed, code
):
    budgets = tmp_path / "budgets.yaml"
    entry = f"{{ module: {PACKAGE}.policy, allowed: {allowed}, target: {allowed} }}"
    budgets.write_text(f"policy: {entry}\n", encoding="utf-8")
    monkeypatch.setattr(closures, "PACKAGE", PACKAGE)
    monkeypatch.setattr(closures, "BUDGETS", budgets)
    assert closures.main([]) == code
    assert f"{PACKAGE}.policy" in capsys.readouterr().out


def test_every_module_that_has_a_budget_exists(closures):
    result = closures.Closures("kvscope")
    for budget in closures.read_budgets(closures.BUDGETS):
        assert budget.modules
        assert all(map(result.of, budget.modules))


def test_a_group_has_every_module_of_the_package_behind_its_entry_points(closures):
    group = closures.Budget("policy", 10, 10, group="kvscope.overflow")
    assert group.modules == ["kvscope.engine.overflow.recompute", "kvscope.engine.overflow.swap"]
    largest = max(map(closures.Closures("kvscope").size, group.modules))
    (line,) = closures.judge([group], closures.Closures("kvscope"))[0][1:]
    assert line.split()[1:3] == ["kvscope.engine.overflow.swap", f"{largest:,}"]


def test_facts_of_a_server_are_read_without_modules_that_its_vllm_may_lack(closures):
    read = closures.Closures("kvscope").of("kvscope.api.vllm_facts")
    room = {module for module in read if module.startswith("kvscope.engine.vllm.")}
    names = ("kv_groups", "platforms", "versions")
    assert room == {f"kvscope.engine.vllm.{name}" for name in names}
