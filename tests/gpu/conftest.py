"""Triton, and its interpreter: a process of its own, since Triton decides when it is imported."""

import importlib
import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from types import ModuleType
from typing import Any

import pytest

Interpreter = Callable[..., Any]


def interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"


def call(name: str, *arguments: Any) -> Any:
    module = importlib.import_module("tests.gpu.interpreted")
    return getattr(module, name)(*arguments)


@pytest.fixture(scope="session")
def triton(require, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Triton is here, and keeps what it compiles to these tests."""
    present = importlib.util.find_spec("triton") is not None
    require("Triton", present, "run `pip install --no-deps -r envs/dev.txt`")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.fixture(scope="session")
def compiler(triton) -> ModuleType:
    """`tests.gpu.compiled`, which can only be imported with Triton."""
    return importlib.import_module("tests.gpu.compiled")


@pytest.fixture(scope="session")
def interpreter(triton) -> Iterator[Interpreter]:
    """`interpreter(name, *arguments)`: that function of `interpreted`, in Triton's interpreter.

    A call is made once, and its result shared.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=interpret) as process:
        yield cache(lambda name, *arguments: process.submit(call, name, *arguments).result())
