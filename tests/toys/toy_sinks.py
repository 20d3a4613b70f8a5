"""A kind of KV group: attention to a window and to the first tokens of a request, its sinks.

So does StreamingLLM (arXiv 2309.17453). `toy_sinks_vllm` has what vLLM needs of it.
"""

from dataclasses import dataclass

from kvscope.api.tables import kv_kinds

SINK_BLOCKS = 1


@dataclass(frozen=True)
class Sinks(kv_kinds.Window):
    """A window, and the first block of each request."""

    contents: str = "sinks and a window"

    def held_blocks(
        self,
        context_tokens: kv_kinds.Count,
        tokens: kv_kinds.Count,
        block_tokens: int,
        window_tokens: int,
    ) -> kv_kinds.Count:
        """Blocks of the window, and the first block if the window has passed it."""
        held = super().held_blocks(context_tokens, tokens, block_tokens, window_tokens)
        left = -(-tokens // block_tokens) - held
        return held + (left >= SINK_BLOCKS) * SINK_BLOCKS

    def admitted_blocks(
        self, longest_tokens: int, pass_tokens: int, block_tokens: int, window_tokens: int
    ) -> int:
        """Blocks of a window, and of the sinks."""
        of_window = super().admitted_blocks(
            longest_tokens, pass_tokens, block_tokens, window_tokens
        )
        return of_window + SINK_BLOCKS


SINKS = Sinks("ToySinks")
