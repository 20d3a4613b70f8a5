"""vLLM's CUDA platform for plans: layers without storage, and every operator is there.

What vLLM decides from a GPU's name, memory and compute capability is decided here, with vLLM's own
list of attention backends. Nothing can be computed: an operator returns True, which is also its
answer where vLLM asks whether a kernel supports the GPU.
"""

import sys
import types
from typing import Any

from torch._ops import _OpNamespace

from kvscope_rehearsal.device import WARP_SIZE, gpus

MODULES = (
    "_C_stable_libtorch",
    "_C",
    "_moe_C",
    "vllm_flash_attn._vllm_fa2_C",
    "vllm_flash_attn._vllm_fa3_C",
)
COMPILED = ("_C", "_moe_C", "_vllm_fa", "_qutlass", "_flash")
"""How the names of vLLM's namespaces of operators begin."""


class Driver:
    """Triton's driver of the node's GPU; it launches nothing."""

    def get_current_target(self) -> Any:
        """The kind of GPU."""
        from triton.backends.compiler import GPUTarget

        major, minor = gpus().capability
        return GPUTarget("cuda", 10 * major + minor, WARP_SIZE)

    def get_current_device(self) -> int:
        """There is one."""
        return 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Operator(name)


class Operator:
    """An operator of a namespace, and its overloads."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any, **__: Any) -> bool:
        """Say yes."""
        return True

    def __getattr__(self, name: str) -> "Operator":
        if name.startswith("__"):
            raise AttributeError(name)
        return Operator(name)


def answer_support() -> None:
    """Answer yes where vLLM's imports ask for support; other operators stay absent.

    While vLLM is imported, `hasattr` decides which of its operators it registers.
    """
    _put_operators(lambda name: "support" in name)
    import vllm
    from triton.runtime import driver

    driver.set_active(Driver())

    for name in MODULES:
        module = sys.modules[f"vllm.{name}"] = types.ModuleType(f"vllm.{name}")
        module.adapt = lambda *_: None  # type: ignore[attr-defined]
        if "." not in name:
            setattr(vllm, name, module)


def answer_all() -> None:
    """Have every operator, now that vLLM is imported."""
    import torch.fx.experimental._config as meta
    from vllm.model_executor.layers.fused_moe.expert_map_manager import ExpertMapManager
    from vllm.model_executor.models import registry

    _put_operators(lambda name: not name.startswith("__"))
    meta.meta_nonzero_assume_all_nonzero = True  # maps of experts are made without storage, too
    ExpertMapManager.get_compressed_map_string = lambda _: "not known"  # for vLLM's log
    registry._run_in_subprocess = lambda inspect: inspect()  # which has no stand-ins for packages


_look_up = _OpNamespace.__getattr__


def _put_operators(known: Any) -> None:
    def look(self: Any, name: str) -> Any:
        try:
            return _look_up(self, name)
        except AttributeError:
            if self.name.startswith(COMPILED) and known(name):
                return Operator(name)
            raise

    _OpNamespace.__getattr__ = look  # type: ignore[method-assign]
