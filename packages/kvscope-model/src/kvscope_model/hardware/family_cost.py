"""Seconds of forward passes of models of other families: windows, latents, states, experts.

What is not said here is as in `kvscope_model.hardware.cost`. Of a layer of one kind (`KvLayers`),
for n tokens after c earlier ones and r requests that decode with C tokens in all:

- full attention: prefill has 2·heads·(key + value elements) FLOPs for each pair of a token and one
  that it attends to, n(n+1)/2 + n·c pairs; decode reads what is kept of the C tokens.
- a window or a chunk of w tokens: a token attends to at most w; decode reads at most r·w tokens.
- latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): prefill makes keys and values of
  the latent, decode absorbs these products: a head multiplies with the latent and the rotary part
  for keys, with the latent for values, 2·heads·(2·latent + rotary) FLOPs a pair. Decode takes the
  longer of these and of reading the latents.
- states (Mamba 2, arXiv 2405.21060): each request's state is read and written once a pass. The
  scan's FLOPs are not counted.

Each token is multiplied with `weights_per_token`; experts that no token takes are not read.
"""

from collections.abc import Callable, Sequence

from kvscope.api.models import KvLayers
from kvscope_model.hardware.cost import CORNER, Chunk, PassCost, Value, paid_elements


class FamilyCost(PassCost):
    """Cost of forward passes of a model by its config.json, with vLLM's kernels of today."""

    def prefill_attention_s(self, chunks: Sequence[Chunk]) -> float:
        """Seconds of a mean layer: its arithmetic, and the states of the chunks' requests."""
        total_s = 0.0
        for kind in self.model.attending:
            flops = 2.0 * self.model.attention_heads * self.model.prefill_elements(kind)
            pairs = sum(attended(n + before, kind) - attended(before, kind) for n, before in chunks)
            total_s += kind.attending_layers * flops * pairs / self.hardware.attention_flops_per_s
        return (total_s + self._states_s(len(chunks))) / self.model.layers

    def decode_attention_s(
        self, context: Value, longest: Value, decodes: Value, longer: Callable[..., Value]
    ) -> Value:
        """Seconds of a mean layer to read what requests keep, and for latents the arithmetic.

        Of requests with a window at most its tokens count: of their sum, so that a short request
        beside long ones counts as one that fills its window.
        """
        total_s = 0.0 * context
        for kind in self.model.attending:
            tokens = context
            if kind.window_tokens is not None:
                tokens = -longer(-context, -(decodes * kind.window_tokens))
            total_s += kind.attending_layers * self._read_s(kind, tokens, longer)
        return (total_s + self._states_s(decodes)) / self.model.layers

    def _read_s(self, kind: KvLayers, tokens: Value, longer: Callable[..., Value]) -> Value:
        """Seconds of one layer whose decoding requests attend to so many tokens."""
        heads, hardware = self.model.attention_heads, self.hardware
        memory_s = tokens * (kind.token_elements * self.kv_width) / self._reads_bytes_per_s
        if kind.kind == "mla":
            flops = 2.0 * heads * self.model.absorbed_elements(kind)
            return longer(memory_s, tokens * flops / hardware.attention_flops_per_s)
        width = 2 * self.model.head_size * self.kv_width
        return longer(memory_s, tokens * (heads * width) / hardware.l2_bytes_per_s)

    def _states_s(self, requests: Value) -> Value:
        """Seconds to read and write the states of so many requests in all layers."""
        state_bytes = sum(kind.layers * kind.state_bytes for kind in self.model.kept)
        return requests * (2.0 * state_bytes) / self._reads_bytes_per_s

    @property
    def _reads_bytes_per_s(self) -> float:
        return self.hardware.memory_bytes_per_s * self.hardware.read_share

    def _uncached_dense_s(self, tokens: float, requests: int) -> float:
        """All products of the layers as one of each layer, and the logits."""
        model, hardware = self.model, self.hardware
        outputs = model.weights_of_a_token / (model.layers * model.hidden_size)
        elements = tokens * outputs
        if not self.is_cpu:
            elements = paid_elements(tokens, int(outputs) + 1, hardware.multiprocessors)
        flops = 2.0 * model.layers * model.hidden_size * elements
        read = min(tokens * model.weights_of_a_token, model.layer_weights)
        arithmetic_s = flops / hardware.gemm_flops_per_s
        weights_s = read * model.number_bytes / hardware.weight_bytes_per_s
        layers_s = float((arithmetic_s**CORNER + weights_s**CORNER) ** (1 / CORNER))
        return layers_s + self.gemm_s(requests, model.vocab_size, model.hidden_size)


def attended(tokens: float, kind: KvLayers) -> float:
    """Pairs of a token and one that it attends to, of the first so many tokens of a request."""
    if kind.kind != "chunked_local" or kind.window_tokens is None:
        return within(tokens, kind.window_tokens)
    chunks, rest = divmod(tokens, kind.window_tokens)
    return chunks * within(kind.window_tokens, None) + within(rest, None)


def within(tokens: float, window_tokens: int | None) -> float:
    """Such pairs of tokens that attend to themselves and all before them in a window."""
    inside = tokens if window_tokens is None else min(tokens, window_tokens)
    return inside * (inside + 1) / 2 + (tokens - inside) * inside
