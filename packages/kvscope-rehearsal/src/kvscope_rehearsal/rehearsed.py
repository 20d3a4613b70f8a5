"""The platform that vLLM takes on a rehearsed node; importable once `platform.plugin` has run."""

from kvscope_rehearsal import operators
from kvscope_rehearsal.node_cuda import NodeCuda


class RehearsedCuda(NodeCuda):
    """vLLM's CUDA platform, computed by PyTorch and by Triton's interpreter."""


operators.adapt(RehearsedCuda)
