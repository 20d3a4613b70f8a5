"""Fixtures of kvscope's own tests: components that may be absent, the warm process, real runs."""

import pytest

from tests.conftest import require, triton, warm, warming
from tests.engine.conftest import run

__all__ = ["require", "run", "triton", "warm", "warming"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Other random experiments than usual."""
    group = parser.getgroup("kvscope")
    group.addoption(
        "--event-models",
        default="tiny-llama,tiny-gqa,tiny-opt",
        help="models of random experiments whose KV events are checked",
    )
    group.addoption("--event-seeds", default="3-5", metavar="FIRST-LAST", help="those experiments")
