"""`cpu`: vLLM's CPU build, kvscope's attention in plain PyTorch."""

from collections.abc import Mapping
from typing import Any, ClassVar

from kvscope.base.errors import BadInput
from kvscope.engine.devices.vllm_platform import VllmPlatform
from kvscope.engine.vllm.preload import CPU_WORKER


class CpuPlatform(VllmPlatform):
    """vLLM always takes its own CPU backend, so kvscope's attention takes the place of that
    backend."""

    slot: ClassVar[str] = "CPU_ATTN"
    worker_modules: ClassVar[tuple[str, ...]] = (CPU_WORKER,)
    backends: ClassVar[Mapping[str, str]] = {
        "paged": "kvscope.engine.vllm.attention.paged.PagedBackend",
    }

    def require(self) -> None:
        """Raise BadInput for vLLM's build for other devices."""
        from kvscope.engine.vllm import platforms

        if not platforms.is_cpu():
            raise BadInput(
                f"device=cpu needs vLLM's build for CPUs, and the one here is for "
                f"{platforms.name()}; run `make env DEVICE=cpu`, or set device=cuda"
            )

    def environment(self) -> dict[str, str]:
        """Hides every GPU from the process."""
        return {"CUDA_VISIBLE_DEVICES": ""}

    def engine_arguments(self) -> dict[str, Any]:
        """An explicit cache size spares vLLM a profiling pass, which would only size the cache.

        A latent has the kernels of any CPU: those for AMX take no float32, and other blocks.
        """
        blocks = self.experiment.cache_blocks + 1  # with vLLM's null block
        latent = any(layers.kind == "mla" for layers in self.experiment.model.kept)
        return {
            "kv_cache_memory_bytes": blocks * self.experiment.block_bytes,
            **({"attention_backend": "CPU_MLA"} if latent else {}),
        }
