"""`cpu`: vLLM on the CPU."""

from typing import ClassVar

from kvscope.plan.device import Device, Kernels, Speed

# CPUAttentionBackend.get_supported_head_sizes of vLLM.
HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


class Cpu(Device):
    """vLLM on the CPU: weights and KV cache are in host memory."""

    platform: ClassVar[str] = "kvscope.engine.devices.cpu:CpuPlatform"
    attentions: ClassVar[dict[str, Kernels]] = {
        "vllm": Kernels(
            32,
            latent_block=16,
            latent_fp8=False,
            head_sizes=HEAD_SIZES,
            layouts=("by_layer",),
        ),
        "paged": Kernels(compared=True),
        "instrumented": Kernels(dtypes=("float32", "bfloat16"), compared=True),
    }
    forces_outputs: ClassVar[bool] = True
    # One thread of a server.
    speed: ClassVar[Speed] = Speed(20, 2e8, 30, 0.01, 1e-4, 2e10, 1e10)

    @property
    def slug(self) -> str:
        """Empty: slugs do not name the default device."""
        return ""

    @property
    def flops_per_s(self) -> float:
        """Floating-point operations per second of one thread, times the number of threads."""
        return self.speed.flops_per_s * self.threads
