"""Running experiments, and what that takes.

`batch` has `run_alone` of a `Job` for each experiment, which gives an exit code. `require_vllm`
refuses an environment without a vLLM that can run.
"""

from kvscope.cli import batch
from kvscope.run.requirements import require_vllm

__all__ = ["batch", "require_vllm"]
