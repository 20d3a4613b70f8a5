"""A vLLM logits processor that gives requests the tokens of a workload.

It notes what the model would have chosen in each place. Where the cache is at fault these differ,
while the tokens that come out are those of the workload in any case.
"""

from typing import Any

import torch
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from kvscope.engine.vllm.outputs import NAME, known_outputs

_choices: dict[str, dict[int, torch.Tensor]] = {}  # by request and place, of unfinished requests


class ForceOutputs(AdapterLogitsProcessor):
    """Leaves in each request's logits only the token that must come out next."""

    def is_argmax_invariant(self) -> bool:
        """False: forcing replaces the most likely token."""
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        """The processor of one request; None for one whose tokens the model chooses."""
        tokens = known_outputs(params)
        if tokens is None:
            return None
        choices = _choices.setdefault(params.extra_args[NAME], {})

        def force(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            place = len(output_ids)
            choices[place] = logits.argmax()  # of a chunk short of the prompt's end: overwritten
            logit = logits[tokens[place]].clone()
            logits.fill_(float("-inf"))
            logits[tokens[place]] = logit
            return logits

        return force


def take_choices(request_id: str) -> list[int] | None:
    """Token ids that the model would have chosen for a finished request; None if it did."""
    choices = _choices.pop(request_id, None)
    return None if choices is None else [int(choices[place]) for place in sorted(choices)]
