"""Offload policies: what is kept where, and how it is moved. One policy a file."""

from kvscope.offload.policies.act_only import ActOnly
from kvscope.offload.policies.flexgen import FlexGen
from kvscope.offload.policies.gpu_kv import GpuKv
from kvscope.offload.policies.hybrid import Hybrid
from kvscope.offload.policies.kv_only import KvOnly
from kvscope.offload.policies.token import TokenRecompute
from kvscope.offload.policies.zero_inference import ZeroInference
from kvscope.offload.policy import OffloadPolicy

POLICIES: dict[str, type[OffloadPolicy]] = {
    "gpu_kv": GpuKv,
    "zero_inference": ZeroInference,
    "flexgen": FlexGen,
    "kv_only": KvOnly,
    "act_only": ActOnly,
    "token": TokenRecompute,
    "hybrid": Hybrid,
}
