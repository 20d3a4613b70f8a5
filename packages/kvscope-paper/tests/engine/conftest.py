"""The paper's tests that run vLLM's scheduler use fixtures of the core's."""

from tests.conftest import require

__all__ = ["require"]
