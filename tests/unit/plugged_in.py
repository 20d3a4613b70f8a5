"""Options of another package, registered as its installation registers them."""

import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest

from kvscope.plan import registry, vocabulary


def plug_in(monkeypatch: pytest.MonkeyPatch, kind: str, classes: Mapping[str, Any]) -> None:
    """Register classes as options of a kind, by name."""
    module = ModuleType(f"toys_{kind}")
    vars(module).update(classes)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    group, own = (
        vocabulary.entry_point_group(kind),
        {of: registry.find_registered(of) for of in registry.KINDS},
    )
    points = {name: EntryPoint(name, f"{module.__name__}:{name}", group) for name in classes}
    result = own | {kind: own[kind] | points}
    monkeypatch.setattr(registry, "find_registered", result.__getitem__)
    monkeypatch.setattr(registry, "load_all", registry.load_all.__wrapped__)
