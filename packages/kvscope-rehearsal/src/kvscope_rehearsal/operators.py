"""Stand-ins for the operators that vLLM has compiled for CUDA, in PyTorch and by CUDA's copies.

With `adapt`, vLLM computes its layers by PyTorch and attention by Triton; operators that it looks
up nevertheless are here. The operators that copy blocks do what vLLM's do: on a GPU by calls
of CUDA, rehearsed by the host. Any other operator raises AttributeError where it is called.
"""

import os
import sys
import types
from collections.abc import Callable
from typing import Any, Protocol

import torch

MODULE = "_C_stable_libtorch"  # of vllm, which registers its operators for CUDA
# vLLM's attention layer imports FlashAttention on CUDA, whether it is called or not.
FLASH_ATTENTION = "vllm.vllm_flash_attn._vllm_fa2_C"
_LIBRARIES: list[Any] = []  # operators live as long as their libraries


class Copies(Protocol):
    """Copies of memory on the current stream: `blocks` each by itself, or a `batch`."""

    def blocks(self, to: torch.Tensor, of: torch.Tensor, width: int, mapping: torch.Tensor) -> None:
        """Copy `width` bytes for each row (block of `of`, block of `to`) of the mapping."""

    def batch(
        self, to: torch.Tensor, of: torch.Tensor, sizes: torch.Tensor, any_order: bool
    ) -> None:
        """Copy so many bytes between each two addresses, in one call.

        In any order, the source may be read before what was launched earlier has ended.
        """


def _looked_up(out: torch.Tensor, x: torch.Tensor) -> None:
    """An activation, which vLLM's layers look up when they are made and compute by PyTorch."""
    raise NotImplementedError("activations are computed by PyTorch where nothing is compiled")


def swap_blocks_by(copies: Copies) -> Callable[..., None]:
    """The operator that copies blocks one after the other."""

    def swap_blocks(
        src: torch.Tensor, dst: torch.Tensor, block_size_in_bytes: int, block_mapping: torch.Tensor
    ) -> None:
        """A copy for each row (block of `src`, block of `dst`) of the mapping."""
        if not (src.is_cuda or dst.is_cuda):
            raise RuntimeError("swap_blocks: one of src and dst must be on the GPU")
        copies.blocks(dst, src, block_size_in_bytes, block_mapping)

    return swap_blocks


def swap_blocks_batch_by(copies: Copies) -> Callable[..., None]:
    """The operator that copies between any addresses."""

    def swap_blocks_batch(
        src_ptrs: torch.Tensor, dst_ptrs: torch.Tensor, sizes: torch.Tensor, any_order: bool = False
    ) -> None:
        """A copy for each entry of the three."""
        copies.batch(dst_ptrs, src_ptrs, sizes, any_order)

    return swap_blocks_batch


def _no(capability: int) -> bool:
    """False, for vLLM's questions at import whether a compiled kernel supports a GPU."""
    return False


ACTIVATIONS = (
    *("silu_and_mul", "mul_and_silu", "gelu_and_mul", "gelu_tanh_and_mul", "fatrelu_and_mul"),
    *("silu_and_mul_with_clamp", "situ_and_mul", "gelu_new", "gelu_fast", "gelu_quick"),
    *("gelu_tanh", "relu_squared", "relu2_no_mul"),
)
ASKED = (
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_scaled_mm_supports_fp4",
    "cutlass_group_gemm_supported",
)


def register(copies: Copies) -> None:
    """Register the operators, and put an empty module in the place of vLLM's compiled ones."""
    if _LIBRARIES:
        return
    os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"  # vLLM's choice on CUDA, and compiled
    spaces: dict[str, dict[str, tuple[str, Callable[..., Any]]]] = {
        "_C": {
            **{name: ("(Tensor(a!) out, Tensor x) -> ()", _looked_up) for name in ACTIVATIONS},
            **{name: ("(int capability) -> bool", _no) for name in ASKED},
        },
        "_C_cache_ops": {
            "swap_blocks": (
                "(Tensor src, Tensor(a!) dst, int size, Tensor mapping) -> ()",
                swap_blocks_by(copies),
            ),
            "swap_blocks_batch": (
                "(Tensor of, Tensor to, Tensor sizes, bool any_order=False) -> ()",
                swap_blocks_batch_by(copies),
            ),
        },
    }
    for space, operators in spaces.items():
        library = torch.library.Library(space, "FRAGMENT")
        _LIBRARIES.append(library)
        for name, (schema, function) in operators.items():
            library.define(name + schema)
            library.impl(name, function, "CompositeExplicitAutograd")
    import vllm

    for name in (f"vllm.{MODULE}", FLASH_ATTENTION):
        sys.modules[name] = types.ModuleType(name)
    setattr(vllm, MODULE, sys.modules[f"vllm.{MODULE}"])


def adapt(platform: Any) -> None:
    """Let vLLM's CUDA platform choose nothing that is compiled."""
    check = platform.check_if_supports_dtype.__func__

    def defaults(cls: Any, vllm_config: Any) -> None:
        chosen = vllm_config.compilation_config.custom_ops
        if "all" not in chosen and "none" not in chosen:
            chosen.append("none")

    def priorities(cls: Any, vllm_config: Any) -> Any:
        from vllm.config.kernel import IrOpPriorityConfig

        return IrOpPriorityConfig.with_default(["native"])

    def attention(*_: Any, **__: Any) -> list[Any]:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        return [AttentionBackendEnum.TRITON_ATTN]

    def check_if_supports_dtype(cls: Any, dtype: torch.dtype) -> None:
        check(cls, dtype)  # in a worker's process, before it makes its model
        _spare_compilation()

    sys.modules["vllm.platforms.cuda"]._get_backend_priorities = attention  # type: ignore[attr-defined]
    platform.apply_config_platform_defaults = classmethod(defaults)
    platform.get_default_ir_op_priority = classmethod(priorities)
    platform.check_if_supports_dtype = classmethod(check_if_supports_dtype)


def _spare_compilation() -> None:
    """Leave out what imports and compiles kernels of other models, or for a dry run alone."""
    from vllm.v1.sample.ops import topk_topp_sampler
    from vllm.v1.worker import gpu_worker

    gpu_worker.kernel_warmup = lambda worker: None
    topk_topp_sampler.HAS_TRITON = False
