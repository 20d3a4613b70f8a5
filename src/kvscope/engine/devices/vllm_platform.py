"""The base of the devices on which vLLM's engine runs."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from kvscope.engine.devices.platform import Platform


class VllmPlatform(Platform):
    """A device of vLLM's engine."""

    def run_engine(self, directory: Path) -> AbstractContextManager[Any]:
        """The engine of the experiment, until the end of a `with` block."""
        from kvscope.engine.vllm.build import run_engine

        return run_engine(self, directory)
