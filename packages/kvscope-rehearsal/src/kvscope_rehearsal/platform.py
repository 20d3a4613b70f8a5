"""vLLM's CUDA platform where something of CUDA is missing: its plugins for vLLM.

`plugin` is of a rehearsed node, where there is no GPU. `without_kernels` is of a machine with a GPU
and vLLM's Python files alone: nothing is rehearsed then, and vLLM's own platform is used.
"""

import os

REHEARSED = "kvscope_rehearsal.rehearsed.RehearsedCuda"
PLANNED = "kvscope_rehearsal.planned_platform.PlannedCuda"
OWN = "vllm.platforms.cuda.CudaPlatform"
_installed: list[str] = []


def plugin() -> str:
    """Platform of a rehearsed node; vLLM calls it before its imports ask for a platform."""
    if not _installed:
        from kvscope_rehearsal import operators
        from kvscope_rehearsal.copies import HostCopies

        _make_gpus()
        operators.register(HostCopies())
        _installed.append(REHEARSED)
    return REHEARSED


def planned() -> str:
    """Platform of a GPU that plans are for; nothing is computed on it."""
    if not _installed:
        from kvscope_rehearsal import absent, planned

        _make_gpus()
        absent.install()
        planned.answer_support()
        _installed.append(PLANNED)
    return PLANNED


def _make_gpus() -> None:
    """Make the node's GPUs of this process's CPU."""
    # The other model runner keeps state in host memory that the GPU maps, which is not rehearsed.
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    from kvscope_rehearsal import device, kernels, mode

    device.install()
    kernels.install()
    mode.install()


def without_kernels() -> str:
    """vLLM's platform of a GPU, which chooses nothing that is compiled."""
    if not _installed:
        from kvscope_rehearsal import operators
        from kvscope_rehearsal.cuda_copies import CudaCopies

        operators.register(CudaCopies())
        from vllm.platforms import cuda

        operators.adapt(cuda.CudaPlatformBase)
        _installed.append(OWN)
    return OWN
