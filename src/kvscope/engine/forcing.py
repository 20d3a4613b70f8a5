"""A vLLM logits processor that gives requests the tokens of a workload."""

from typing import Any

import torch
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from kvscope.engine.outputs import known_outputs


class ForceOutputs(AdapterLogitsProcessor):
    """Leaves of each request's logits only that of the token which must come out next."""

    def is_argmax_invariant(self) -> bool:
        """The most likely token is another one."""
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        """The processor of one request; None for one whose tokens the model chooses."""
        tokens = known_outputs(params)
        if tokens is None:
            return None

        def force(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            token = tokens[len(output_ids)]
            own = logits[token].clone()
            logits.fill_(float("-inf"))
            logits[token] = own
            return logits

        return force
