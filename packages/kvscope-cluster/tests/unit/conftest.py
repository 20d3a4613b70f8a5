"""Fixtures of kvscope's own unit tests."""

from tests.unit.conftest import composed_once, fakes_have_names

__all__ = ["composed_once", "fakes_have_names"]
