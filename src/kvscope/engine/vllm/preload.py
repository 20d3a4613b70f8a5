"""Imports and settings of vLLM that are made once, in the process that engines are forked from.

Nothing of vLLM is imported with this module.
"""

ENGINE = (
    *("vllm.entrypoints.llm", "vllm.v1.engine.core"),
    *("vllm.model_executor.models.llama", "vllm.model_executor.models.opt"),
)
"""The modules of any engine."""
CPU_WORKER = "vllm.v1.worker.cpu_worker"
"""Importing it replaces torch's functions for GPUs in the whole process."""
GPU_WORKER = "vllm.v1.worker.gpu_worker"


def register_kernels() -> None:
    """Look through all modules for Triton's kernels now, and never again.

    It fails after llvmlite's import.
    """
    from vllm.platforms import current_platform
    from vllm.triton_utils import dispatcher

    current_platform.register_triton_kernel_overrides()
    dispatcher.register_kernels = lambda overrides: None
