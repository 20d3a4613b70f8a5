"""The environment of a measured process: an allow-list, so that no secret is recorded.

Nsight Systems stores the whole environment of the process that it profiles, and results are shared.
"""

import os
from collections.abc import Mapping

from kvscope.engine.devices.platform import platform_of
from kvscope.plan.experiment import Experiment

# Variables that are passed on if set.
ALLOWED = frozenset(
    (
        *("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TERM"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "VIRTUAL_ENV"),
        # Caches, each of which a node may have elsewhere than in a home that cannot be written.
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT"),
        *("NUMBA_CACHE_DIR", "CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR"),
        *("TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_INTERPRET"),
        # Tools with which Triton compiles kernels and their launchers.
        *("CC", "CXX", "CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"),
        *("TRITON_LIBCUDA_PATH", "TRITON_PTXAS_PATH"),
        # The GPU, CUDA's server for it, and the management of its memory.
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING"),
        *("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_DEVICE_MAX_CONNECTIONS"),
        *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
        *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
        # vLLM's process group, of one process, on a node whose name is no address.
        *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "VLLM_HOST_IP"),
        *("PACK_DIRECTORY", "PACK_EXCLUSIVE"),
    )
)

# Requirements of vLLM and its libraries; they override the caller's variables.
REQUIRED = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine runs in this process, with its records
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # its order of copies and forward pass is known
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # two experiments at once must not share one core
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # libgomp's idle threads spin by default, which under other load makes passes 100× slower.
    "OMP_WAIT_POLICY": "passive",
    # BLAS is called by many threads at once, each for a small part.
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


def measured_environment(
    experiment: Experiment, source: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of the process that runs the engine.

    OMP_NUM_THREADS and Numba's are the experiment's number of CPU threads.
    """
    source = os.environ if source is None else source
    environment = {name: value for name, value in source.items() if name in ALLOWED}
    environment.update(REQUIRED)
    environment["OMP_NUM_THREADS"] = str(experiment.device.threads)
    environment["NUMBA_NUM_THREADS"] = str(experiment.device.threads)
    return environment | platform_of(experiment).environment()
