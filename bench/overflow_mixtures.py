"""Savings of mixtures of overflow actions within a victim, by the cost model alone.

    python bench/overflow_mixtures.py

`adaptive` takes one action for all blocks of a victim. Two mixtures are tried by brute force: some
blocks swapped and the others rebuilt; and a prefix kept, with the tokens after it computed again in
the pass that resumes the victim. Each row has the most that is saved, as a share of the cheapest
single action, and the evicted tokens where it is.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from kvscope.plan.grid import expand
from kvscope_model.hardware.overflow_cost import OverflowCost
from kvscope_offload.overflow.adaptive import Adaptive
from kvscope_offload.overflow.victims import Foreseen

TOKENS = (256, 512, 1000, 2000, 4000, 8000, 16_000)
HARDWARE = ("a100-40gb", "h100", "rtx-4090")
MODELS = ("yarn-llama-2-7b", "llama-3.1-8b")
STEP = 16  # of the blocks that are tried; all of the last 64
CONFIG = Path(__file__).parents[1] / "config"


def prepared(*words: str) -> tuple[Adaptive, bool]:
    """The policy of an experiment, and whether it may rebuild."""
    base = ("device=modeled", "workload=uniform", "overflow=adaptive", "cache.gib=2")
    (planned,) = expand(None, [*base, *words], CONFIG).experiments
    policy = planned.experiment.overflow
    assert isinstance(policy, Adaptive)
    policy.prepare(planned.experiment)
    return policy, bool(policy.pools(planned.experiment).activations)


def swap_s(cost: OverflowCost, blocks: int) -> float:
    """Out and in."""
    return sum(cost.swap_s(blocks, 1, way)[0] for way in ("out", "in")) if blocks else 0.0


def rebuild_s(cost: OverflowCost, blocks: int) -> float:
    """Fetched and rebuilt."""
    tokens = blocks * cost.block_size
    return cost.fetch_s(blocks, 1)[0] + cost.rebuild_s(tokens) if blocks else 0.0


def halves_s(cost: OverflowCost, tokens: int) -> float:
    """The least of some blocks swapped and the others rebuilt."""
    count = -(-tokens // cost.block_size)
    step = max(1, count // 128)
    return min(swap_s(cost, n) + rebuild_s(cost, count - n) for n in range(0, count + 1, step))


def tails_s(cost: OverflowCost, tokens: int, rebuilds: bool) -> float:
    """Shortest time of keeping a prefix and computing the tokens after it with the newest token."""
    count, spent = -(-tokens // cost.block_size), []
    due_s = cost.passes.pass_s([], 1, 1, 1) if cost.shares_passes else 0.0
    extra_s = 0.0 if cost.shares_passes else cost.hardware.between_passes_s
    for blocks in range(1, count):
        if blocks < count - 64 and blocks % STEP:
            continue
        before = blocks * cost.block_size
        again_s = cost.passes.pass_s([(tokens + 1 - before, before)], 0, 0, 0) - due_s + extra_s
        kept_s = swap_s(cost, blocks)
        kept_s = min(kept_s, rebuild_s(cost, blocks)) if rebuilds else kept_s
        spent.append(kept_s + max(0.0, again_s))
    return min(spent)


def savings() -> Iterator[tuple[str, float, int, float, int]]:
    """The two savings of each condition, in percent, each with its evicted tokens."""
    copies = ("per_block", "coalesced")
    for hardware, model, batching, how in product(
        HARDWARE, MODELS, ("prefill_first", "mixed"), copies
    ):
        settings = {"device.hardware": hardware, "model": model, "batching": batching}
        words = [f"{key}={value}" for key, value in settings.items()]
        policy, rebuilds = prepared(*words, f"overflow.copies={how}")
        cost = policy._cost
        assert isinstance(cost, OverflowCost)
        halves, tails = [(0.0, 0)], [(0.0, 0)]
        for tokens in TOKENS:
            victim = Foreseen("", tokens, 1, tokens, 0, room=True, activations=rebuilds)
            least_s = min(policy.seconds(victim).values())
            if rebuilds:
                halves.append((100 * (1 - halves_s(cost, tokens) / least_s), tokens))
            tails.append((100 * (1 - tails_s(cost, tokens, rebuilds) / least_s), tokens))
        yield f"{hardware:10} {model:16} {batching:14} {how:10}", *max(halves), *max(tails)


if __name__ == "__main__":
    print(f"{'':52} swapped and rebuilt     prefix kept, tail again")
    for words, half, at, tail, of in savings():
        print(f"{words} {half:6.2f} % of {at:6} tokens {tail:6.2f} % of {of:6} tokens")
