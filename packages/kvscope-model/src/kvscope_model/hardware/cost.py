"""Seconds of forward passes and of block copies by their contents; see docs/MODEL.md.

A pass of n tokens and r requests takes

    max(launches, layers x (GEMMs + attention) + logits) + r x (request + vocabulary)

On a CPU, hardware of one multiprocessor, launches do not overlap with the rest: their sum counts.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import ceil
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kvscope.api.models import Model
from kvscope_model.arraytypes import Floats, Int64s
from kvscope_model.hardware.hardware import Hardware

# Output tiles of cuBLAS as it may choose them: tokens, outputs, and how much slower than the
# largest per FLOP, because a smaller tile reads each operand more often.
TILES = (
    (256, 128, 1.0),
    (128, 256, 1.0),
    (128, 128, 1.1),
    (64, 128, 1.3),
    (128, 64, 1.3),
    (64, 64, 1.6),
    (32, 64, 2.2),
)
# The exponent of the soft maximum of arithmetic and memory time.
CORNER = 4
# Queries of a thread block of vLLM 0.4.2's kernel of chunked prefill.
PREFIX_QUERIES = 128

Chunk = tuple[float, int]  # tokens computed, tokens in the cache before
Value = TypeVar("Value", float, Floats)  # of one pass, or of each of many


class Loads(NamedTuple):
    """Contents of many passes, in arrays, as arguments of `PassCost.pass_s`."""

    chunks: Sequence[Sequence[Chunk]]
    decodes: Int64s
    context: Floats
    longest: Floats


class LayerCost(NamedTuple):
    """Seconds of one layer of a pass, and of its kernels of the cache.

    The kernel that writes K and V begins `write_start_s` after the layer, attention follows it.
    """

    seconds: float
    write_start_s: float
    write_s: float
    attention_s: float


class PassCost:
    """Cost of forward passes of a model on some hardware.

    `prefix_kernel`: prefill runs in vLLM 0.4.2's kernel of chunked prefill, else in FlashAttention.
    `split_decode`: decode attention is split along the context over thread blocks, as vLLM does
    today; paged_attention_v1, which the paper ran with, has one thread block a head and request.
    `kv_width` is the bytes of a number in the cache, by default those of the model's number type.
    """

    def __init__(
        self,
        hardware: Hardware,
        model: Model,
        prefix_kernel: bool = False,
        split_decode: bool = False,
        kv_width: int | None = None,
    ) -> None:
        self.hardware, self.model = hardware, model
        self.kv_width = kv_width or model.number_bytes
        self.is_cpu = hardware.multiprocessors == 1
        self.prefix_kernel, self.split_decode = prefix_kernel, split_decode
        self._dense_s = cache(self._uncached_dense_s)

    def rows_s(self, rows: Iterable[tuple[int, int]]) -> float:
        """Seconds of a pass of requests, each with its tokens and those in the cache before."""
        return self.pass_s(*_prefill_and_decode(rows))

    def layer_cost(self, rows: Iterable[tuple[int, int]]) -> LayerCost:
        """One layer of the pass that `rows_s` gives the seconds of; all layers are equal.

        The formulas of passes include the writes in the GEMMs' rate: here they are at the device's
        bandwidth, in the time of the GEMMs that follow.
        """
        chunks, decodes, context, longest = _prefill_and_decode(rows)
        tokens = sum(n for n, _ in chunks) + decodes
        model, hardware = self.model, self.hardware
        qkv_s, *others_s = (self.gemm_s(tokens, *shape) for shape in self._shapes)
        attention_s = self._attention_s(chunks, decodes, context, longest)
        busy_s = qkv_s + attention_s + sum(others_s)
        launches_s = hardware.layer_launch_s
        bytes_written = 2 * tokens * model.kv_heads * model.head_size * self.kv_width
        return LayerCost(
            busy_s + launches_s if self.is_cpu else max(busy_s, launches_s),
            qkv_s,
            min(bytes_written / hardware.memory_bytes_per_s, sum(others_s)),
            attention_s,
        )

    def pass_s(
        self, chunks: Sequence[Chunk], decodes: int, context: float, longest: float
    ) -> float:
        """Seconds of a pass of prompts' chunks and of `decodes` requests that decode.

        These have `context` tokens in all and `longest` the longest, the newest one included.
        """
        attention_s = self._attention_s(chunks, decodes, context, longest)
        requests = len(chunks) + decodes
        tokens = sum(n for n, _ in chunks) + decodes
        return self._pass_s(self._dense_s(tokens, requests), attention_s, requests, max)

    def passes_s(self, loads: Loads) -> Floats:
        """Seconds of many passes, each to the last bit as of `pass_s`."""
        prompts = [len(chunks) for chunks in loads.chunks]
        requests = np.array(prompts, np.int64) + loads.decodes
        attention_s = np.where(
            loads.decodes > 0,
            self.decode_attention_s(loads.context, loads.longest, loads.decodes, np.maximum),
            0,
        )
        tokens = loads.decodes.tolist()
        for place in np.flatnonzero(prompts):
            chunks = loads.chunks[place]
            tokens[place] += sum(n for n, _ in chunks)
            attention_s[place] += self.prefill_attention_s(chunks)
        dense_s = np.array(list(map(self._dense_s, tokens, requests.tolist())))
        return self._pass_s(dense_s, attention_s, requests.astype(float), np.maximum)

    def _pass_s(
        self,
        dense_s: Value,
        attention_s: Value,
        requests: Value,
        longer: Callable[..., Value],
    ) -> Value:
        """The parts of a pass together; `longer` is the maximum."""
        layers, hardware = self.model.layers, self.hardware
        gpu_s = dense_s + layers * attention_s
        host_s = hardware.request_s + hardware.vocabulary_entry_s * self.model.vocab_size
        launches_s = layers * hardware.layer_launch_s
        busy_s = gpu_s + launches_s if self.is_cpu else longer(gpu_s, launches_s)
        return busy_s + requests * host_s

    @property
    def _shapes(self) -> tuple[tuple[int, int], ...]:
        """Outputs and inputs of a layer's GEMMs, Q, K and V first."""
        model = self.model
        inner = model.intermediate_size * (2 if model.family == "llama" else 1)
        return (
            (model.head_size * (model.attention_heads + 2 * model.kv_heads), model.hidden_size),
            (model.hidden_size, model.head_size * model.attention_heads),
            (inner, model.hidden_size),
            (model.hidden_size, model.intermediate_size),
        )

    def _uncached_dense_s(self, tokens: float, requests: int) -> float:
        """GEMMs of all layers, and the logits."""
        model = self.model
        layer_s = sum(self.gemm_s(tokens, *shape) for shape in self._shapes)
        return model.layers * layer_s + self.gemm_s(requests, model.vocab_size, model.hidden_size)

    def gemm_s(self, tokens: float, outputs: int, inputs: int) -> float:
        """A dense layer: bound by arithmetic or by reading its weights, with a soft corner."""
        hardware = self.hardware
        elements = float(tokens * outputs)
        if not self.is_cpu:
            elements = paid_elements(tokens, outputs, hardware.multiprocessors)
        arithmetic_s = 2.0 * inputs * elements / hardware.gemm_flops_per_s
        weights_s = outputs * inputs * self.model.number_bytes / hardware.weight_bytes_per_s
        return float((arithmetic_s**CORNER + weights_s**CORNER) ** (1 / CORNER))

    def _attention_s(
        self, chunks: Sequence[Chunk], decodes: int, context: float, longest: float
    ) -> float:
        """Attention seconds of one layer: prefill and decode kernels run one after the other."""
        prefill_s = self.prefill_attention_s(chunks) if chunks else 0.0
        if not decodes:
            return prefill_s
        return prefill_s + self.decode_attention_s(context, longest, decodes, max)

    def prefill_attention_s(self, chunks: Sequence[Chunk]) -> float:
        """Prefill attention seconds of one layer."""
        if self.prefix_kernel:
            return self._prefix_attention_s(chunks)
        pairs = sum(n * (n + 1) / 2 + n * context for n, context in chunks)
        flops = 4.0 * self.model.attention_heads * self.model.head_size * pairs
        return flops / self.hardware.attention_flops_per_s

    def _prefix_attention_s(self, chunks: Sequence[Chunk]) -> float:
        """Waves of thread blocks, each of 128 queries of a head, over cached and new tokens."""
        hardware = self.hardware
        blocks = [ceil(n / PREFIX_QUERIES) for n, _ in chunks]
        total = sum(blocks)
        waves = ceil(total * self.model.attention_heads / hardware.multiprocessors)
        cached = sum(b * context for b, (_, context) in zip(blocks, chunks, strict=True)) / total
        new = sum(b * n / 2 for b, (n, _) in zip(blocks, chunks, strict=True)) / total
        return waves * (cached * hardware.prefix_token_s + new * hardware.chunk_token_s)

    def decode_attention_s(
        self, context: Value, longest: Value, decodes: Any, longer: Callable[..., Value]
    ) -> Value:
        """Decode attention seconds of one layer: K and V from memory, per query head from L2.

        A thread block of paged_attention_v1 has its share of the bandwidth, and its request's whole
        context: it ends last for the longest one. `longer` gives the larger of two values.
        """
        hardware, model = self.hardware, self.model
        width = 2 * model.head_size * self.kv_width
        reads_bytes_per_s = hardware.memory_bytes_per_s * hardware.read_share
        memory_s = context * model.kv_heads * width / reads_bytes_per_s
        cache_s = context * model.attention_heads * width / hardware.l2_bytes_per_s
        if self.split_decode:
            return longer(memory_s, cache_s)
        share = hardware.memory_bytes_per_s / hardware.multiprocessors
        return longer(longer(memory_s, cache_s), longest * width / share)


def _prefill_and_decode(
    rows: Iterable[tuple[int, int]],
) -> tuple[list[Chunk], int, int, int]:
    """The chunks of a pass, and of its decoding requests number, tokens in all, and longest."""
    chunks: list[Chunk] = []
    context = longest = decodes = 0
    for tokens, before in rows:
        if tokens > 1 or not before:
            chunks.append((tokens, before))
            continue
        decodes += 1
        context += before + 1
        longest = max(longest, before + 1)
    return chunks, decodes, context, longest


@cache
def paid_elements(tokens: float, outputs: int, multiprocessors: int) -> float:
    """Output elements that a GEMM pays for: whole waves of one tile a multiprocessor."""
    return min(
        ceil(ceil(tokens / rows) * ceil(outputs / columns) / multiprocessors)
        * multiprocessors
        * rows
        * columns
        * slower
        for rows, columns, slower in TILES
    )


def copy_s(
    hardware: Hardware, copies: int, piece_bytes: float, memory: str, direction: str
) -> tuple[float, float]:
    """Seconds of equal copies one after another: on the device, and until the host's calls return.

    `memory` is 'pinned' or 'pageable', `direction` 'out' or 'in'. The host waits for pageable
    copies; of pinned ones a stream takes `copy_queue` ahead. A clock around unsynchronised calls,
    as the paper's, reads the second.
    """
    rate = getattr(hardware, f"{memory}_{direction}_bytes_per_s")
    fixed_s = getattr(hardware, f"{memory}_copy_s")
    each_s = max(hardware.copy_issue_s, fixed_s + piece_bytes / rate)
    device_s = copies * each_s
    if memory == "pageable":
        return device_s, device_s
    ahead = min(copies, hardware.copy_queue)
    return device_s, max(copies * hardware.copy_issue_s, (copies - ahead) * each_s)


def copies_in(
    hardware: Hardware, seconds: float, moved_bytes: float, memory: str, direction: str
) -> int:
    """Number of equal copies of these bytes that take so many seconds, the inverse of `copy_s`.

    1 where their number makes no difference.
    """
    of_bytes_s = moved_bytes / getattr(hardware, f"{memory}_{direction}_bytes_per_s")
    fixed_s = getattr(hardware, f"{memory}_copy_s")
    candidates = [seconds / hardware.copy_issue_s] if hardware.copy_issue_s else []
    candidates += [(seconds - of_bytes_s) / fixed_s] if fixed_s else []
    return max(1, round(min(candidates, default=1)))
