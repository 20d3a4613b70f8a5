"""Fixtures of kvscope's own tests: components that may be absent, and the warm process."""

from tests.conftest import require, warm, warming

__all__ = ["require", "warm", "warming"]
