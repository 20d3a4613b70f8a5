"""Times of a machine for each part of a step, measured through the engine's own lanes."""

from collections.abc import Callable

import torch

from kvscope_offload.architecture import Architecture, attend
from kvscope_offload.cost import CostModel, Line, Sizes
from kvscope_offload.lanes import RealLanes
from kvscope_offload.pipeline import Job
from kvscope_offload.weights import Weights

REPEATS = 3
TOKENS = (256, 1024, 4096)
PREFIXES = (64, 256, 512)  # tokens of one request
REQUESTS = (4, 16, 32)
LINK_BYTES = (2**20, 2**22, 2**24)


def profile(arch: Architecture, weights: Weights, lanes: RealLanes) -> CostModel:
    """The lines of a machine, each through the fastest of three runs at three amounts."""
    device = {"dtype": arch.dtype, "device": arch.device}
    model, most = arch.model, max(TOKENS)
    w = weights.views(weights.layers[0].to(arch.device))
    hidden = torch.zeros(most, model.hidden_size, **device).normal_()
    rows = torch.arange(most, device=arch.device)
    positions = rows % model.max_position_embeddings
    pageable = torch.zeros(max(LINK_BYTES), dtype=torch.uint8)
    host = pageable.pin_memory() if arch.device.type == "cuda" else pageable
    there = torch.zeros_like(host, device=arch.device)
    requests = REQUESTS[1]
    context = torch.zeros(requests, most // requests, 2 * arch.kv_width, **device).normal_()

    def link(size: int) -> None:
        there[:size].copy_(host[:size], non_blocking=True)

    def relay(size: int) -> None:
        buffer = pageable[:size]
        buffer.pin_memory() if arch.device.type == "cuda" else buffer.clone()

    def rebuild(tokens: int) -> None:
        kv = arch.keys_values(w, hidden[:tokens], positions[:tokens])
        context.view(most, -1).index_copy_(0, rows[:tokens], kv)

    def forward(requests: int) -> None:
        x = arch.attention_input(w, hidden[:requests])
        arch.keys_values(w, x, positions[:requests])
        arch.finish(w, hidden[:requests], arch.query(w, x, positions[:requests]))

    def attention(tokens: int) -> None:
        attend(hidden[:requests, None], context[:, : tokens // requests], model, None)

    def prefix(tokens: int) -> None:
        kv = context.view(1, most, -1)[:, :tokens]
        attend(hidden[None, :tokens], kv, model, None, causal=True)

    def seconds(run: Callable[[int], None], amount: int, on: str = "device") -> float:
        return _seconds(lanes, on, run, amount)

    pairs = [n * (n + 1) // 2 for n in PREFIXES]
    return CostModel(
        Sizes.of(model),
        link=Line.fit(LINK_BYTES, [seconds(link, n, "link") for n in LINK_BYTES]),
        rebuild=Line.fit(TOKENS, [seconds(rebuild, n) for n in TOKENS]),
        recompute=Line.fit(TOKENS, [seconds(forward, n) for n in TOKENS]),
        forward=Line.fit(REQUESTS, [seconds(forward, n) for n in REQUESTS]),
        attend=Line.fit(TOKENS, [seconds(attention, n) for n in TOKENS]),
        causal=Line.fit(pairs, [seconds(prefix, n) for n in PREFIXES]),
        relay=Line.fit(LINK_BYTES, [seconds(relay, n) for n in LINK_BYTES]),
    )


def _seconds(lanes: RealLanes, on: str, run: Callable[[int], None], amount: int) -> float:
    """The fastest of some runs, after one to warm up."""
    job_bytes = amount if on == "link" else 0

    def once() -> None:
        with torch.no_grad():
            run(amount)

    lane = getattr(lanes, on)
    for _ in range(1 + REPEATS):
        lane.submit(Job("profile", once, bytes=job_bytes))
        lane.join()
    return min(i.end_s - i.start_s for i in lanes.read()[1:])
