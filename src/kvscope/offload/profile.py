"""What a machine takes for each thing that a step does, measured through the engine's own lanes."""

from collections.abc import Callable

import torch

from kvscope.offload.architecture import Architecture, attend
from kvscope.offload.cost import CostModel, Line, Sizes
from kvscope.offload.lanes import RealLanes
from kvscope.offload.pipeline import Job
from kvscope.offload.weights import Weights

REPEATS = 3
TOKENS = (256, 1024, 4096)
REQUESTS = (4, 16, 32)
LINK_BYTES = (2**20, 2**22, 2**24)


def profile(arch: Architecture, weights: Weights, lanes: RealLanes) -> CostModel:
    """The lines of a machine, each through the fastest of three runs at three amounts."""
    device = {"dtype": arch.dtype, "device": arch.device}
    model = arch.model
    w = weights.views(weights.layers[0].to(arch.device))
    hidden = torch.zeros(max(TOKENS), model.hidden_size, **device).normal_()
    positions = torch.arange(max(TOKENS), device=arch.device) % model.max_position_embeddings
    host = torch.zeros(max(LINK_BYTES), dtype=torch.uint8)
    if arch.device.type == "cuda":
        host = host.pin_memory()
    there = torch.zeros_like(host, device=arch.device)

    def link(size: int) -> None:
        there[:size].copy_(host[:size], non_blocking=True)

    def rebuild(tokens: int) -> None:
        arch.keys_values(w, hidden[:tokens], positions[:tokens])

    def forward(requests: int) -> None:
        x = arch.attention_input(w, hidden[:requests])
        arch.keys_values(w, x, positions[:requests])
        arch.finish(w, hidden[:requests], arch.query(w, x, positions[:requests]))

    requests = REQUESTS[1]
    context = torch.zeros(requests, max(TOKENS) // requests, 2 * arch.kv_width, **device).normal_()

    def attention(tokens: int) -> None:
        attend(hidden[:requests, None], context[:, : tokens // requests], model, None)

    def line(run: Callable[[int], None], amounts: tuple[int, ...], on: str = "device") -> Line:
        seconds = [_seconds(lanes, on, run, amount) for amount in amounts]
        return Line.fit(amounts, seconds)

    return CostModel(
        Sizes.of(model),
        link=line(link, LINK_BYTES, "link"),
        rebuild=line(rebuild, TOKENS),
        recompute=line(forward, TOKENS),
        forward=line(forward, REQUESTS),
        attend=line(attention, TOKENS),
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
