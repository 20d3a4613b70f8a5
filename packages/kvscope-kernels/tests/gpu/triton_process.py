"""Triton's interpreter is a process of its own: Triton decides when it is imported."""

import importlib
import os
from collections.abc import Callable
from typing import Any

Interpreter = Callable[..., Any]


def interpret() -> None:
    """Begin such a process."""
    os.environ["TRITON_INTERPRET"] = "1"


def call(name: str, *arguments: Any) -> Any:
    """Return value of a function of `triton_interpreted`, called in that process."""
    module = importlib.import_module("triton_interpreted")
    return getattr(module, name)(*arguments)
