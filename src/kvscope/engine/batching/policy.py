"""What a batching policy is."""

from typing import Any, ClassVar

from kvscope.engine.scheduler import RecordingScheduler


class BatchingPolicy:
    """How forward passes are filled: a scheduler and how vLLM is set up for it.

    A policy is made with its settings, the keys of its configuration beside `name`.
    """

    scheduler: ClassVar[type[RecordingScheduler]] = RecordingScheduler

    def engine_arguments(self) -> dict[str, Any]:
        """What it adds to vLLM's `EngineArgs`; by default prompts are computed whole."""
        return {"enable_chunked_prefill": False}
