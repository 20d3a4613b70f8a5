"""The requirement of runs beyond kvscope's dependencies: a build of vLLM for the machine."""

import sys
from importlib.util import find_spec

from kvscope.base.errors import BadInput
from kvscope.base.machine import installed_vllm
from kvscope.engine.vllm.versions import unless_engine, unless_scheduling
from kvscope.plan.layers import SHIPPED


def require_vllm(computes: bool = True) -> None:
    """Raise BadInput, with advice, if vLLM is absent or its release is not supported.

    Devices without a worker, which compute nothing, run with more releases.
    """
    if find_spec("vllm") is None:
        pins = (SHIPPED / "envs").resolve()
        raise BadInput(
            f"runs need vLLM, which is not installed in {sys.prefix}: `make env` in a checkout; "
            f"elsewhere `pip install --no-deps -r {pins}/cpu.txt`, or for an NVIDIA GPU "
            f"`pip install -r {pins}/cuda.txt`, as its first lines explain"
        )
    unless = unless_engine if computes else unless_scheduling
    if (installed := installed_vllm()) and (why := unless(installed[1])):
        raise BadInput(why)
