"""Functions that run inside Triton's interpreter: see `triton_process`."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from cuda_cases import LAYER, Case

from kvscope_kernels.engine.clock import ClockSample
from kvscope_kernels.engine.cuda import launch
from kvscope_kernels.engine.cuda.batch import cut_batch
from kvscope_kernels.engine.cuda.buffer import HEADER, HEADER_WORDS, CudaSegments
from kvscope_kernels.engine.cuda.clock import CudaClock
from kvscope_kernels.kv_events import RECORD, RECORD_WORDS

UNTOUCHED = -0x5555555555555556
GUARD = 64  # rows after the buffers' ends


@dataclass
class Outcome:
    """Results of the kernels."""

    output: np.ndarray  # (tokens, heads, head size)
    expected: np.ndarray  # the same by PyTorch
    cache: np.ndarray  # (blocks, KV heads, block size, 2 · head size)
    table: np.ndarray
    writes: np.ndarray  # HEADER of each segment of the write kernel
    reads: np.ndarray
    events: np.ndarray  # RECORD; the whole buffer and GUARD rows more
    words: np.ndarray  # the same, as (rows, 4) words
    splits: int


class Model:
    """A case's tensors; blocks in random order, NaN in every slot that holds no token."""

    def __init__(self, case: Case) -> None:
        random = np.random.default_rng(7)
        dtype = getattr(torch, case.dtype)
        context, queries = np.array(case.context), np.array(case.queries)
        self.case, self.lengths = case, context + queries
        self.starts = np.concatenate(([0], np.cumsum(queries)))
        blocks = -(-self.lengths // case.block_size)
        order = random.permutation(blocks.sum() + 3)
        self.table = np.zeros((len(context), blocks.max() + 1), np.int32)
        for row, count in enumerate(blocks):
            self.table[row, :count] = order[blocks[:row].sum() :][:count]

        def tensor(*shape: int) -> torch.Tensor:
            return torch.from_numpy(random.standard_normal(shape)).to(dtype)

        size = (case.kv_heads, case.block_size)
        shape = size if case.heads_first else size[::-1]
        cache = torch.full((len(order), *shape, 2 * case.head_size), torch.nan, dtype=dtype)
        self.cache = cache if case.heads_first else cache.transpose(1, 2)
        tokens = int(self.starts[-1])
        # The layout in vLLM: parts of one tensor, of which a rotation may have made K anew.
        self.sizes = [case.heads, case.kv_heads, case.kv_heads]
        self.all_heads = tensor(tokens, sum(self.sizes), case.head_size)
        self.query, key, self.value = self.all_heads.split(self.sizes, dim=1)
        self.key = key.contiguous()
        for row, before in enumerate(context):
            for position in range(before):
                block, slot = self.slot(row, position)
                self.cache[block, :, slot] = tensor(case.kv_heads, 2 * case.head_size)
        places = [
            self.slot(row, position)
            for row in range(len(context))
            for position in range(context[row], self.lengths[row])
        ]
        self.slots = torch.tensor([b * case.block_size + s for b, s in places])

    def moved(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Queries, cache, keys and values on a device, their axes in the same order in memory."""
        inner = self.cache if self.case.heads_first else self.cache.transpose(1, 2)
        cache = inner.to(device) if self.case.heads_first else inner.to(device).transpose(1, 2)
        heads = self.all_heads.to(device)
        query, _, value = heads.split(self.sizes, dim=1)
        return query, cache, self.key.to(device), value

    def slot(self, row: int, position: int) -> tuple[int, int]:
        size = self.case.block_size
        return int(self.table[row, position // size]), position % size

    def attended(self) -> torch.Tensor:
        """Attention by PyTorch, in float32, with the earlier contents of the cache."""
        size, group = self.case.head_size, self.case.heads // self.case.kv_heads
        parts = []
        for row, length in enumerate(self.lengths):
            new = slice(self.starts[row], self.starts[row + 1])
            held = [self.slot(row, position) for position in range(self.case.context[row])]
            kv = torch.cat((self.key[new], self.value[new]), -1)
            kv = torch.stack([*(self.cache[b, :, s] for b, s in held), *kv]).float()
            kv = kv.repeat_interleave(group, 1)
            q = self.query[new].float()
            scores = torch.einsum("qhd,khd->hqk", q, kv[..., :size]) * size**-0.5
            ahead = torch.ones(scores.shape[1:]).triu(int(length - len(q)) + 1).bool()
            weights = scores.masked_fill(ahead, -torch.inf).softmax(-1)
            parts.append(torch.einsum("hqk,khd->qhd", weights, kv[..., size:]))
        return torch.cat(parts)


def attention(
    case: Case, instrument: bool = True, skip: int | None = None, on: str = "cpu"
) -> Outcome:
    """Run the kernels on a case; `skip` is a token that vLLM says is not to be written.

    `on` is the device: a GPU runs them compiled.
    """
    model = Model(case)
    if skip is not None:
        model.slots[skip] = -1
    work = cut_batch(
        model.starts, model.lengths, case.block_size, case.kv_heads, case.tile, case.processors
    )
    place = torch.device(on)
    device = launch.to_device(work, case.heads, case.head_size, case.head_stride, place)
    kinds = [tiles.host for tiles in device.tiles]
    rooms = [(2 * len(work.pieces), len(work.pieces))]
    rooms += [(t.events(case.head_stride), t.segments(case.head_stride)) for t in kinds]
    needed, segments = sum(events for events, _ in rooms), sum(count for _, count in rooms)
    capacity = min(case.capacity, needed)
    events = torch.full((capacity + GUARD, RECORD_WORDS), UNTOUCHED).to(place)
    headers = torch.full((segments + GUARD, HEADER_WORDS), UNTOUCHED).to(place)
    counter = torch.zeros(1, dtype=torch.int64).to(place)
    places = np.cumsum([(0, 0), *rooms], axis=0)

    def recording(n: int) -> CudaSegments | None:
        first_event, first = (int(x) for x in places[n])
        made = CudaSegments(
            *("", LAYER, events, headers, counter),
            *(first_event, capacity, first, rooms[n][1]),
        )
        return made if instrument else None

    query, cache, key, value = model.moved(place)
    output = torch.full(query.shape, torch.nan, dtype=query.dtype).to(place)
    launch.write(key, value, cache, model.slots.to(place), device, recording(0))
    # Some columns of a wider table.
    table = torch.from_numpy(np.pad(model.table, ((0, 0), (0, 3)), constant_values=-1)).to(place)
    table, scale = table[:, : model.table.shape[1]], case.head_size**-0.5
    for n, tiles in enumerate(device.tiles):
        launch.attend(*(query, cache, output, table, tiles, scale), recording(n + 1))
    model.cache, output, events, headers = (x.cpu() for x in (cache, output, events, headers))
    result = headers.numpy().view(HEADER)[:, 0]
    assert (headers[segments:] == UNTOUCHED).all()
    return Outcome(
        output.float().numpy(),
        model.attended().numpy(),
        model.cache.float().numpy(),
        model.table,
        result[: rooms[0][1]],
        result[rooms[0][1] : segments],
        events.numpy().view(RECORD)[:, 0],
        events.numpy(),
        work.decode.splits,
    )


def uninstrumented(case: Case) -> Outcome:
    """The kernels as they run when nothing is traced."""
    return attention(case, instrument=False)


def overflowing(case: Case, capacity: int) -> Outcome:
    """The kernels with a buffer that holds only so many events."""
    return attention(replace(case, capacity=capacity))


def timer() -> tuple[float, ClockSample]:
    """The step of the timer, which counts its readings here, and a sample of it."""
    clock = CudaClock("cpu")
    return clock.resolution_ns(1), clock.sample()
