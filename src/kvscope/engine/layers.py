"""Host time of every transformer block, by PyTorch's forward hooks.

On a GPU this is the time to launch the block's kernels; the kernels' own times come from the
profiler, which finds them through the same ranges.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from kvscope.ranges import LAYER

if TYPE_CHECKING:
    from kvscope.engine.scheduler import RecordingScheduler


def transformer_blocks(model: torch.nn.Module) -> torch.nn.ModuleList:
    """The model's transformer blocks, in order: its longest list of modules."""
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    return max(lists, key=len)


class LayerTimer:
    """Records start and end of every transformer block in the scheduler's recording."""

    def __init__(self, scheduler: "RecordingScheduler") -> None:
        self._scheduler = scheduler
        self._start_ns = 0
        self._handles: list[Any] = []
        self._first: torch.nn.Module | None = None

    def install(self, model: torch.nn.Module) -> int:
        """Hook all transformer blocks of `model`; returns their number."""
        blocks = transformer_blocks(model)
        self._first = blocks[0]
        for layer, block in enumerate(blocks):
            self._handles.append(block.register_forward_pre_hook(self._before(layer)))
            self._handles.append(block.register_forward_hook(self._after(layer)))
        return len(blocks)

    def before_layers(self, action: Callable[[], None]) -> Any:
        """Call `action` before the first block of each pass; returns a handle with `remove()`.

        At that point the copies of the pass have been issued, and its new tokens are not in the
        cache yet.
        """
        assert self._first is not None
        return self._first.register_forward_pre_hook(lambda _module, _args: action())

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before(self, layer: int) -> Any:
        def hook(_module: torch.nn.Module, _args: Any) -> None:
            self._scheduler.marks.push(LAYER, layer)
            self._start_ns = self._scheduler.clock.now_ns()

        return hook

    def _after(self, layer: int) -> Any:
        def hook(_module: torch.nn.Module, _args: Any, _output: Any) -> None:
            scheduler = self._scheduler
            end_ns = scheduler.clock.now_ns()
            scheduler.marks.pop()
            recording = scheduler.recording
            recording.layers.extend((len(recording.passes) - 1, layer, self._start_ns, end_ns))

        return hook
