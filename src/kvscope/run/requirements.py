"""The requirement of runs beyond kvscope's dependencies: a build of vLLM for the machine."""

import sys
from importlib.util import find_spec

from kvscope.errors import BadInput
from kvscope.plan.layers import SHIPPED


def require_vllm() -> None:
    """Raise BadInput, saying how to install it, if there is no vLLM."""
    if find_spec("vllm") is None:
        pins = (SHIPPED / "envs").resolve()
        raise BadInput(
            f"runs need vLLM, which is not installed in {sys.prefix}: `make env` in a checkout; "
            f"elsewhere `pip install --no-deps -r {pins}/cpu.txt`, or for an NVIDIA GPU "
            f"`pip install -r {pins}/cuda.txt`, as its first lines explain"
        )
