"""Triton's compiler and interpreter."""

import importlib
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from types import ModuleType

import pytest
from triton_process import Interpreter, call, interpret


@pytest.fixture(scope="session")
def compiler(triton: None) -> ModuleType:
    """`triton_compiled`, which can only be imported with Triton."""
    return importlib.import_module("triton_compiled")


@pytest.fixture(scope="session")
def interpreter(triton: None) -> Iterator[Interpreter]:
    """`interpreter(name, *arguments)`: that function of `triton_interpreted`, interpreted.

    A call is made once, and its result shared.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=interpret) as process:
        yield cache(lambda name, *arguments: process.submit(call, name, *arguments).result())
