"""Passes output tokens that are known before to the engine.

They travel in vLLM's `SamplingParams.extra_args`. A modeled executor answers with them; where a
model computes, a logits processor (`engine.vllm.forcing`) leaves no other token to choose.
"""

from collections.abc import Mapping
from typing import Any

KEY, NAME = "kvscope_output_token_ids", "kvscope_request_id"
FORCE = "kvscope.engine.vllm.forcing:ForceOutputs"


def extra_args(request_id: str, output_token_ids: list[int] | None) -> dict[str, Any] | None:
    """vLLM's `extra_args` of a request that must be given these tokens, if any."""
    return None if output_token_ids is None else {KEY: output_token_ids, NAME: request_id}


def known_outputs(sampling_params: Any) -> list[int] | None:
    """The tokens that a request must be given; None if the model chooses."""
    extra: Mapping[str, Any] = getattr(sampling_params, "extra_args", None) or {}
    tokens: list[int] | None = extra.get(KEY)
    return tokens
