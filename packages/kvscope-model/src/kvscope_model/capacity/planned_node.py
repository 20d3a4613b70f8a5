"""Processes in which vLLM finds a GPU that is not there, and plans for it (`kvscope_rehearsal`)."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from kvscope.api.errors import BadInput
from kvscope.api.machine import machine
from kvscope_model.capacity.gpus import Gpu


def environment(directory: Path, gpu: Gpu, count: int, source: Mapping[str, str]) -> dict[str, str]:
    """The environment `source` of a process that finds so many GPUs, described in `directory`.

    BadInput if vLLM or Triton, which vLLM imports for a GPU, is not installed.
    """
    from kvscope_rehearsal.node import PLANNED, Gpus, environment_of, make_node

    installed = machine.installed_vllm()
    if installed is None or find_spec("triton") is None:
        raise BadInput(
            f"vLLM's plan for a GPU ({gpu.name}) needs {'triton' if installed else 'vLLM'}, which "
            "is not installed; run `make env`, or ask for the plan of this machine's CPU: --gpu "
            "cpu of `kvscope bytes`, device.hardware=cpu of device=modeled"
        )
    gpus = Gpus(count, gpu.name, gpu.memory_bytes, gpu.capability, gpu.processors)
    make_node(directory, gpus, f"{installed[1].partition('+')[0]}+planned", PLANNED)
    # vLLM asks for FlashInfer's compiled kernels before it chooses its backends.
    return environment_of(directory, {**source, "VLLM_HAS_FLASHINFER_CUBIN": "1"})
