"""The jobs of a schedule as work on tensors."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvscope_offload.amounts import loaded_bytes, stored_bytes
from kvscope_offload.architecture import Architecture, Tensors, attend
from kvscope_offload.blocks import Content, Kind, Minibatch, Place
from kvscope_offload.generation import Generation
from kvscope_offload.pipeline import Job, Pass
from kvscope_offload.storage import Storage
from kvscope_offload.weights import Weights

KV_HOST, KV_DEVICE = (Kind(Content.KV, place) for place in (Place.HOST, Place.DEVICE))
ACT_HOST, ACT_DEVICE = (Kind(Content.ACTIVATION, place) for place in (Place.HOST, Place.DEVICE))


@dataclass(frozen=True)
class Slot:
    """A staging buffer on the device: K and V of a mini-batch, padded, and its activations.

    `context` is (requests, tokens, 2 * kv_width); `activations` is (tokens, hidden). Neither ever
    holds NaN, which a mask would not keep out of a sum.
    """

    context: torch.Tensor
    activations: torch.Tensor


@dataclass(frozen=True)
class Indices:
    """Places of a mini-batch's tokens, as tensors on the device; equal in every layer."""

    requests: torch.Tensor  # [b] numbers of its requests
    positions: torch.Tensor  # [n] of the tokens to compute
    last: torch.Tensor  # [b] the row of each request's last token
    rebuilt: torch.Tensor  # [a] rows of the flat context, of the tokens to rebuild
    rebuilt_positions: torch.Tensor  # [a]
    mask: torch.Tensor | None  # [b, m] which tokens of the context there are
    length: int  # m


class Memory:
    """Memory of a generation: storage of its blocks, staging buffers, buffers of weights."""

    def __init__(self, arch: Architecture, weights: Weights, generation: Generation) -> None:
        self.key = _memory_key(generation)
        sizes, (count, longest, rebuilt, buffers) = self.key
        policy = generation.policy
        self.storage = Storage(arch, dict(sizes), generation.block_size, policy.pinned)
        device = {"dtype": arch.dtype, "device": arch.device}
        elements = weights.elements if policy.streamed else 0
        self.weights = [torch.zeros(elements, **device) for _ in range(2)]
        self.slots = [
            Slot(
                torch.zeros(count, longest, 2 * arch.kv_width, **device),
                torch.zeros(rebuilt, arch.model.hidden_size, **device),
            )
            for _ in range(buffers)
        ]

    def suits(self, generation: Generation) -> bool:
        """True if another generation of the same policy needs equal memory."""
        return self.key == _memory_key(generation)


MemoryKey = tuple[tuple[tuple[Kind, int], ...], tuple[int, int, int, int]]


def _memory_key(generation: Generation) -> MemoryKey:
    """Pool sizes; requests and tokens of a staging buffer, tokens to rebuild in it, buffers."""
    requests, policy = len(generation.sequences), generation.policy
    count = -(-requests // min(policy.minibatches, requests))
    longest = max(s.total_tokens + 1 for s in generation.sequences)
    rebuilt = count * longest if generation.split.activation else 0
    return tuple(generation.sizes.items()), (count, longest, rebuilt, policy.schedule.buffers)


class TensorWork:
    """Computes a generation's passes; `outputs[i]` are the tokens of request i as they come.

    `copied` counts the bytes that crossed the link, by what they were.
    """

    def __init__(
        self,
        arch: Architecture,
        weights: Weights,
        generation: Generation,
        memory: Memory,
        prompts: Sequence[torch.Tensor],
    ) -> None:
        self.arch, self.layer_weights, self.generation = arch, weights, generation
        self.layers = arch.model.layers
        self.storage, self._weights, self._slots = memory.storage, memory.weights, memory.slots
        self.prompts = prompts  # on the device
        self.outputs: list[list[torch.Tensor]] = [[] for _ in prompts]
        self.copied: Counter[str] = Counter()
        self._newest = torch.zeros(len(prompts), dtype=torch.long, device=arch.device)
        self._indices: list[Indices] = []
        self._hidden: list[torch.Tensor] = []
        self._ids_hidden: list[torch.Tensor] = []
        self._rows: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def sampled(self, step: Pass) -> list[int]:
        """The tokens that a pass gave, in the order of its rows; waits for the device."""
        newest: list[int] = self._newest.tolist()
        return [newest[row.index] for row in step.rows]

    # ------------------------------------------------------------------------------ the jobs

    def weights(self, layer: int, buffer: int, part: int, parts: int) -> Job | None:
        """One part of a layer's flat buffer."""
        if not self.generation.policy.streamed:
            return None
        source, target = self.layer_weights.layers[layer], self._weights[buffer]
        size = -(-len(source) // parts)
        here = slice(part * size, min(len(source), (part + 1) * size))
        copied = _bytes(source[here])
        run = _no_grad(lambda: self._copy(target[here], source[here], "weights"))
        return Job("weights", run, bytes=copied, layer=layer)

    def begin(self, step: Pass) -> Job:
        """Embed the prompts, or the newest tokens and the prefixes to compute again."""
        return Job("begin", _no_grad(lambda: self._begin(step)), step=step.number)

    def load(self, step: Pass, layer: int, minibatch: int, slot: int) -> Job | None:
        """Copy what the host keeps of a mini-batch's context into a slot."""
        batch = step.minibatches[minibatch]
        size = loaded_bytes(self.generation.cost.sizes, batch)
        if not size:
            return None
        sources = self._host_rows(layer, batch)
        run = _no_grad(lambda: self._load(sources, self._slots[slot]))
        return Job("load", run, 0.0, size, layer, minibatch, step.number)

    def compute(self, step: Pass, layer: int, minibatch: int, slot: int, buffer: int) -> Job:
        """One layer of one mini-batch."""

        def run() -> None:
            resident = not self.generation.policy.streamed
            flat = self.layer_weights.layers[layer] if resident else self._weights[buffer]
            w = self.layer_weights.views(flat)
            minibatch_work = self._prefill if step.prefill else self._decode
            x, kv = minibatch_work(
                w, step.minibatches[minibatch], layer, minibatch, self._slots[slot]
            )
            self._store(step.minibatches[minibatch], layer, x, kv, Place.DEVICE)
            self._rows[step.number, layer, minibatch] = x, kv

        return Job("compute", _no_grad(run), 0.0, 0, layer, minibatch, step.number)

    def store(self, step: Pass, layer: int, minibatch: int) -> Job | None:
        """Copy the new tokens' rows to the host's blocks."""
        batch = step.minibatches[minibatch]

        def run() -> None:
            x, kv = self._rows.pop((step.number, layer, minibatch))
            if x.is_cuda:
                for tensor in (x, kv):
                    tensor.record_stream(torch.cuda.current_stream())
            self._store(batch, layer, x, kv, Place.HOST)

        size = stored_bytes(self.generation.cost.sizes, batch)
        return Job("store", _no_grad(run), 0.0, size, layer, minibatch, step.number)

    def end(self, step: Pass) -> Job:
        """Sample the next tokens: greedily."""
        return Job("end", _no_grad(lambda: self._end(step)), step=step.number)

    # ------------------------------------------------------------------------- what they do

    def _begin(self, step: Pass) -> None:
        outer = self.layer_weights.outer
        self._indices = [self._indices_of(batch, step.prefill) for batch in step.minibatches]
        self._hidden, self._ids_hidden = [], []
        for batch, indices in zip(step.minibatches, self._indices, strict=True):
            if step.prefill:
                ids = torch.cat([self.prompts[row.index] for row in batch.rows])
            else:
                ids = self._newest[indices.requests]
            self._hidden.append(self.arch.embed(outer, ids, indices.positions))
            again = [self._known(row.index, row.id_tokens) for row in batch.rows]
            positions = [torch.arange(len(ids), device=ids.device) for ids in again]
            self._ids_hidden.append(self.arch.embed(outer, torch.cat(again), torch.cat(positions)))

    def _known(self, index: int, count: int) -> torch.Tensor:
        """The first token ids of a request; its last block of ids may fill as it generates."""
        prompt = self.prompts[index]
        if count <= len(prompt):
            return prompt[:count]
        return torch.cat((prompt, torch.stack(self.outputs[index][: count - len(prompt)])))

    def _host_rows(self, layer: int, batch: Minibatch) -> list[tuple[Kind, int, int, torch.Tensor]]:
        """(kind, place in the mini-batch, first token, rows) of all that the host keeps.

        Of pageable memory the rows are copied first, by the host, to memory that the link can take.
        """
        outputs = []
        for kind in (KV_HOST, ACT_HOST):
            source = self.storage.rows(kind, layer)
            for place, row in enumerate(batch.rows):
                for span in row.context[kind]:
                    rows = source[span.row : span.row + span.tokens]
                    if not self.generation.policy.pinned:
                        rows = (
                            rows.pin_memory() if self.arch.device.type == "cuda" else rows.clone()
                        )
                    outputs.append((kind, place, span.first_token, rows))
        return outputs

    def _load(self, sources: list[tuple[Kind, int, int, torch.Tensor]], slot: Slot) -> None:
        filled = 0
        for kind, place, first, rows in sources:
            if kind is KV_HOST:
                self._copy(slot.context[place, first : first + len(rows)], rows, "kv")
            else:
                self._copy(slot.activations[filled : filled + len(rows)], rows, "activation")
                filled += len(rows)

    def _prefill(
        self, w: Tensors, batch: Minibatch, layer: int, minibatch: int, slot: Slot
    ) -> tuple[torch.Tensor, torch.Tensor]:
        indices, lengths = self._indices[minibatch], [row.new_tokens for row in batch.rows]
        hidden, x, kv = self._whole_layer(w, self._hidden[minibatch], indices.positions, lengths)
        self._hidden[minibatch] = hidden
        return x, kv

    def _whole_layer(
        self, w: Tensors, hidden: torch.Tensor, positions: torch.Tensor, lengths: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A layer of whole prefixes, one after another: hidden states, activations, K beside V."""
        arch = self.arch
        x = arch.attention_input(w, hidden)
        kv, q = arch.keys_values(w, x, positions), arch.query(w, x, positions)
        attended = [
            self._causal(one_q, one_kv)
            for one_q, one_kv in zip(q.split(lengths), kv.split(lengths), strict=True)
        ]
        return arch.finish(w, hidden, torch.cat(attended)), x, kv

    def _causal(self, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Causal attention of one request's [n, …]; in tiles if the architecture is tiled."""
        model, tile = self.arch.model, self.arch.tile
        if not len(q):  # a request none of whose tokens are computed again
            return q
        if tile is None:
            return attend(q[None], kv[None], model, None, causal=True)[0]
        rows = [
            attend(q[None, i : i + 1].clone(), kv[None, : i + 1].clone(), model, None)[0]
            for i in range(len(q))
        ]
        return torch.cat(rows)

    def _decode(
        self, w: Tensors, batch: Minibatch, layer: int, minibatch: int, slot: Slot
    ) -> tuple[torch.Tensor, torch.Tensor]:
        arch, indices = self.arch, self._indices[minibatch]
        self._gather(batch, layer, slot)
        self._rebuild(w, batch, indices, slot)
        self._recompute(w, batch, minibatch, slot)
        hidden = self._hidden[minibatch]
        x = arch.attention_input(w, hidden)
        kv, q = arch.keys_values(w, x, indices.positions), arch.query(w, x, indices.positions)
        count = len(batch.rows)
        slot.context[torch.arange(count, device=x.device), indices.positions] = kv
        context = slot.context[:count, : indices.length]
        self._hidden[minibatch] = arch.finish(w, hidden, self._attended(q, context, batch, indices))
        return x, kv

    def _gather(self, batch: Minibatch, layer: int, slot: Slot) -> None:
        """Copy what the device keeps of the context into the slot, behind what came by the link."""
        filled = batch.kept[ACT_HOST]
        for place, row in enumerate(batch.rows):
            for span in row.context[KV_DEVICE]:
                rows = self.storage.rows(KV_DEVICE, layer)[span.row : span.row + span.tokens]
                slot.context[place, span.first_token : span.first_token + span.tokens] = rows
            for span in row.context[ACT_DEVICE]:
                rows = self.storage.rows(ACT_DEVICE, layer)[span.row : span.row + span.tokens]
                slot.activations[filled : filled + span.tokens] = rows
                filled += span.tokens

    def _rebuild(self, w: Tensors, batch: Minibatch, indices: Indices, slot: Slot) -> None:
        """K and V of the activations, by one product, to their places in the context."""
        if not batch.rebuilt_tokens:
            return
        x = slot.activations[: batch.rebuilt_tokens]
        kv = self.arch.keys_values(w, x, indices.rebuilt_positions)
        slot.context.view(-1, kv.shape[1]).index_copy_(0, indices.rebuilt, kv)

    def _recompute(self, w: Tensors, batch: Minibatch, minibatch: int, slot: Slot) -> None:
        """The prefixes that are known by their ids alone, through the whole layer."""
        if not batch.id_tokens:
            return
        lengths = [row.id_tokens for row in batch.rows]
        hidden = self._ids_hidden[minibatch]
        positions = torch.cat([torch.arange(n, device=hidden.device) for n in lengths])
        hidden, _, kv = self._whole_layer(w, hidden, positions, lengths)
        self._ids_hidden[minibatch] = hidden
        for place, rows in enumerate(kv.split(lengths)):
            slot.context[place, : len(rows)] = rows

    def _attended(
        self, q: torch.Tensor, context: torch.Tensor, batch: Minibatch, indices: Indices
    ) -> torch.Tensor:
        model = self.arch.model
        if self.arch.tile is None:
            return attend(q[:, None], context, model, indices.mask)[:, 0]
        # Of copies, since kernels differ in their last bits by how memory is aligned.
        kvs = [context[i : i + 1, : row.context_tokens + 1] for i, row in enumerate(batch.rows)]
        each = [
            attend(q[i : i + 1, None].clone(), kv.clone(), model, None) for i, kv in enumerate(kvs)
        ]
        return torch.cat(each)[:, 0]

    def _store(
        self, batch: Minibatch, layer: int, x: torch.Tensor, kv: torch.Tensor, place: Place
    ) -> None:
        first = 0
        for row in batch.rows:
            for content, rows, name in (
                (Content.KV, kv, "kv"),
                (Content.ACTIVATION, x, "activation"),
            ):
                kind = Kind(content, place)
                for span in row.targets[kind]:
                    start = first + span.first_token - row.context_tokens
                    target = self.storage.rows(kind, layer)[span.row : span.row + span.tokens]
                    counted = f"stored {name}" if place is Place.HOST else f"kept {name}"
                    self._copy(target, rows[start : start + span.tokens], counted)
            first += row.new_tokens

    def _end(self, step: Pass) -> None:
        for batch, indices, hidden in zip(
            step.minibatches, self._indices, self._hidden, strict=True
        ):
            logits = self.arch.logits(self.layer_weights.outer, hidden[indices.last])
            newest = logits.argmax(1)
            self._newest[indices.requests] = newest
            for row, token in zip(batch.rows, newest, strict=True):
                self.outputs[row.index].append(token)

    def _indices_of(self, batch: Minibatch, prefill: bool) -> Indices:
        rows = batch.rows
        lengths = [row.context_tokens for row in rows]
        longest = self._slots[0].context.shape[1]
        spans = [
            (place * longest, np.arange(span.first_token, span.first_token + span.tokens))
            for kind in (ACT_HOST, ACT_DEVICE)
            for place, row in enumerate(rows)
            for span in row.context[kind]
        ]
        mask = None
        if not prefill and len(set(lengths)) > 1:
            there = torch.arange(max(lengths) + 1, device=self.arch.device)
            mask = there[None] <= self._tensor([np.array(lengths)])[:, None]
        return Indices(
            self._tensor([np.array([row.index for row in rows])]),
            self._tensor([row.context_tokens + np.arange(row.new_tokens) for row in rows]),
            self._tensor([np.cumsum([row.new_tokens for row in rows]) - 1]),
            self._tensor([first + tokens for first, tokens in spans]),
            self._tensor([tokens for _, tokens in spans]),
            mask,
            max(lengths) + 1,
        )

    def _tensor(self, parts: Sequence[npt.NDArray[np.int64]]) -> torch.Tensor:
        """Numbers on the device."""
        numbers = torch.from_numpy(np.concatenate(parts) if parts else np.zeros(0, np.int64))
        if self.arch.device.type == "cuda":
            return numbers.pin_memory().to(self.arch.device, non_blocking=True)
        return numbers

    def _copy(self, target: torch.Tensor, source: torch.Tensor, name: str) -> None:
        target.copy_(source, non_blocking=True)
        self.copied[name] += _bytes(source)


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _no_grad(run: Callable[[], None]) -> Callable[[], None]:
    """The job without autograd, which is a state of the thread that runs it."""

    def inside() -> None:
        with torch.no_grad():
            run()

    return inside
