"""The platform that vLLM takes for plans; importable once `platform.planned` has run."""

from typing import Any

from kvscope_rehearsal.node_cuda import NodeCuda


class PlannedCuda(NodeCuda):
    """vLLM's CUDA platform with all of its attention backends; nothing is computed on it."""

    @classmethod
    def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
        """GPUs are taken to be connected by NVLink."""
        return True

    @classmethod
    def get_nvlink_topology(cls, *_: Any) -> None:
        """Unknown."""
