"""Packages that a plan imports and never uses are made of nothing where they are absent."""

import sys
from importlib import import_module

import pytest

from kvscope_rehearsal.absent import Finder, nothing


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that is not installed, and that is found all the same."""
    name = "no_such_package"
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder([name])])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return name


def test_its_modules_and_their_names_can_be_imported(absent: str) -> None:
    part = import_module(f"{absent}.transforms.v2")
    assert part.Resize is part.Resize
    assert isinstance(part.Resize(3), part.Resize)
    assert part.Mode.BICUBIC is not None


def test_classes_of_it_can_be_inherited_from_and_annotate(absent: str) -> None:
    base = import_module(absent).Processor
    assert issubclass(type("Own", (base,), {}), base)
    assert (base | None, None | base, base[int]) == (base, base, base)


def test_a_decorator_of_it_changes_nothing() -> None:
    def computed() -> int:
        return 3

    assert nothing("jit")(computed) is computed


def test_other_packages_are_not_found(absent: str) -> None:
    assert Finder([absent]).find_spec("another_package") is None
    with pytest.raises(ModuleNotFoundError):
        import_module("another_package_that_is_not_here")


def test_hidden_attributes_are_absent(absent: str) -> None:
    assert not hasattr(import_module(absent), "__wrapped__")
    assert not hasattr(nothing("Anything"), "__wrapped__")
