"""`mixed`: prefill and decode share a forward pass, a prompt is computed whole."""

from typing import ClassVar, Literal

from kvscope.engine.batching.policy import BatchingPolicy


class Mixed(BatchingPolicy):
    """vLLM's own order: running requests decode first, then whole prompts that fit are added."""

    cuts_prompts: ClassVar[Literal["never"]] = "never"
