"""Fixtures of kvscope's own tests: components that may be absent, the warm process."""

from tests.conftest import forked, nsys, require, warm, warming

__all__ = ["forked", "nsys", "require", "warm", "warming"]
