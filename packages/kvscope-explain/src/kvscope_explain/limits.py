"""Limits of a run's passes, and the rules by which its requests are admitted."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Limits:
    """Limits of a pass, and the rules by which a request is admitted.

    `whole_prompts`: a prompt is computed in one pass. `reserves_all`: a request is admitted only if
    all of its tokens have room. `kept_free` is a share of the blocks.
    """

    pass_tokens: float = math.inf
    requests: float = math.inf
    whole_prompts: bool = False
    reserves_all: bool = True
    kept_free: float = 0.0

    @property
    def known(self) -> bool:
        """Whether a limit is known: that of published logs is not."""
        return min(self.pass_tokens, self.requests) < math.inf

    @staticmethod
    def of(settings: Mapping[str, Any], server: Mapping[str, Any]) -> "Limits":
        """The limits of an experiment's settings, or of a recorded server's."""
        engine, batching = (_section(settings, name) for name in ("engine", "batching"))
        cache, stated = _section(settings, "cache"), engine or server
        limits = (stated.get("max_num_batched_tokens"), batching.get("chunk_tokens"))
        tokens = min((limit for limit in limits if isinstance(limit, int)), default=math.inf)
        whole = batching.get("name") in ("prefill_first", "mixed")
        return Limits(
            pass_tokens=tokens,
            requests=stated.get("max_num_seqs") or math.inf,
            whole_prompts=whole or server.get("chunked_prefill") is False,
            reserves_all=stated.get("scheduler_reserve_full_isl") is not False,
            kept_free=cache.get("watermark") or server.get("watermark") or 0.0,
        )


def _section(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = settings.get(name)
    return value if isinstance(value, Mapping) else {}
