"""The memory of a GPU, by what it holds."""

from dataclasses import dataclass

from kvscope.plan.fields import GIB


@dataclass(frozen=True)
class GpuMemory:
    """Bytes of a GPU's memory, by what they hold."""

    weight_bytes: int
    cache_bytes: int
    activation_bytes: int
    copy_bytes: int
    event_buffer_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(vars(self).values())

    @property
    def words(self) -> str:
        """'weights 12.6, KV cache 2.0, activations 0.3', in GiB; parts of 0 bytes are left out."""
        parts = {
            "weights": self.weight_bytes,
            "KV cache": self.cache_bytes,
            "activations": self.activation_bytes,
            "copies": self.copy_bytes,
            "event buffers": self.event_buffer_bytes,
        }
        return ", ".join(f"{part} {gib_text(size)}" for part, size in parts.items() if size)


def gib_text(size_bytes: int) -> str:
    """'14.9', or '0.067' of less than a tenth."""
    size = size_bytes / GIB
    return f"{size:,.1f}" if size >= 0.1 or not size else f"{size:.2g}"
