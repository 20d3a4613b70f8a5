"""Without a package with a cost model."""

import pytest

from kvscope.base import plugins
from kvscope.base.errors import BadInput
from kvscope.plan.grid import expand
from kvscope.plan.layers import SHIPPED_CONFIG
from tests.unit.test_plugins import _without_costs, toys

__all__ = ["toys"]


def test_adaptive_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "entry_points", _without_costs)
    with pytest.raises(BadInput, match="no package with a cost model is installed"):
        expand(None, ["device=cpu", "overflow=adaptive"], SHIPPED_CONFIG)
