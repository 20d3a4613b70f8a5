"""Fixtures of kvscope's own tests: components that may be absent, the warm process, real runs."""

from tests.conftest import require, warm, warming
from tests.engine.conftest import run

__all__ = ["require", "run", "warm", "warming"]
