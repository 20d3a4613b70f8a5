"""Packages that are imported and never used in a plan, made of nothing where they are absent.

Modules of multimodal models import image and audio processors, and those of some quantizations
kernels' packages, when they are imported: a plan of the KV cache uses none of them. FlashInfer is a
requirement of vLLM on a GPU, whose attention backends are chosen if it is there.
"""

import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from itertools import accumulate
from types import ModuleType
from typing import Any

NAMES = (
    *("torchvision", "tilelang", "deep_gemm", "cuda", "cutlass", "flashinfer"),
    *("mistral_common", "timm", "torchaudio"),
    "vllm.third_party.deep_gemm",
)


class _Meta(type):
    """Classes whose attributes are there, too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return nothing(name)

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())


def nothing(name: str) -> type:
    """A class that stands for a class, function or value of an absent package."""

    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        # As a decorator it returns what it decorates.
        if cls.__bases__ == (object,) and len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return object.__new__(cls)

    return _Meta(name, (object,), {"__new__": call, "__init__": lambda *_, **__: None})


class _Absent(ModuleType):
    """A module without content."""

    __path__: Any = ()
    __version__ = "0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = nothing(name)
        setattr(self, name, value)
        return value


class Finder:
    """Finds the absent packages' modules."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module of an absent package; None for any other."""
        parents = accumulate(fullname.split("."), lambda whole, part: f"{whole}.{part}")
        if self.names.isdisjoint(parents):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """An empty module."""
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


def install() -> list[str]:
    """Stand in for the packages that are absent; their names."""
    absent = [name for name in NAMES if importlib.util.find_spec(name) is None]
    sys.meta_path.append(Finder(absent))  # type: ignore[arg-type]
    return absent
