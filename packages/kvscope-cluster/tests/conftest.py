"""Fixtures of kvscope's own tests: components that may be absent, the warm process."""

from tests.conftest import forked, require, warm, warming

__all__ = ["forked", "require", "warm", "warming"]
