"""Fixtures of kvscope's own tests: components that may be absent, the warm process, real runs."""

from tests.conftest import forked_commands, require, warm, warming
from tests.engine.conftest import run

__all__ = ["forked_commands", "require", "run", "warm", "warming"]
