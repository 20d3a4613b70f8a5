"""Offload policies: placement and movement of data. One policy a file."""

from kvscope_offload.policies.act_only import ActOnly
from kvscope_offload.policies.flexgen import FlexGen
from kvscope_offload.policies.gpu_kv import GpuKv
from kvscope_offload.policies.hybrid import Hybrid
from kvscope_offload.policies.kv_only import KvOnly
from kvscope_offload.policies.token import TokenRecompute
from kvscope_offload.policies.zero_inference import ZeroInference
from kvscope_offload.policy import OffloadPolicy

POLICIES: dict[str, type[OffloadPolicy]] = {
    "gpu_kv": GpuKv,
    "zero_inference": ZeroInference,
    "flexgen": FlexGen,
    "kv_only": KvOnly,
    "act_only": ActOnly,
    "token": TokenRecompute,
    "hybrid": Hybrid,
}
