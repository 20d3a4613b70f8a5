"""Host time of every transformer block.

On a GPU this is the time to launch the block's kernels; the kernels' own times come from the
profiler, which finds them through the same ranges.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from kvscope.base.ranges import LAYER

if TYPE_CHECKING:
    from kvscope.engine.current import CurrentRecording


def transformer_blocks(model: torch.nn.Module) -> torch.nn.ModuleList:
    """The model's transformer blocks, in order: its longest list of modules."""
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    return max(lists, key=len)


class LayerTimer:
    """Records start and end of every transformer block in a recording.

    Their `forward` is wrapped. Hooks would have PyTorch take a slower way to call it.
    """

    def __init__(self, recorder: "CurrentRecording") -> None:
        self._recorder = recorder
        self._blocks: Sequence[Any] = ()

    def install(self, model: torch.nn.Module) -> int:
        """Time all transformer blocks of `model`; returns their number."""
        self._blocks = [*transformer_blocks(model)]
        for layer, block in enumerate(self._blocks):
            block.forward = self._timed(layer, block.forward)
        return len(self._blocks)

    def before_layers(self, action: Callable[[], None]) -> Any:
        """Call `action` before the first block of each pass; returns a handle with `remove()`.

        At that point the copies of the pass have been issued, and its new tokens are not in the
        cache yet.
        """
        return self._blocks[0].register_forward_pre_hook(lambda _module, _args: action())

    def remove(self) -> None:
        """Time no block any more."""
        for block in self._blocks:
            del block.forward
        self._blocks = ()

    def _timed(self, layer: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        recorder, now_ns = self._recorder, self._recorder.clock.now_ns

        @wraps(forward)
        def timed(*args: Any, **kwargs: Any) -> Any:
            recorder.marks.push(LAYER, layer)
            start_ns = now_ns()
            outputs = forward(*args, **kwargs)
            end_ns = now_ns()
            recorder.marks.pop()
            recording = recorder.recording
            recording.layers.extend((len(recording.passes) - 1, layer, start_ns, end_ns))
            return outputs

        return timed
