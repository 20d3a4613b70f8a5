"""Random requests with shared prefixes, served in a scarce cache with a prefix cache."""

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Any
from unittest import mock

import numpy as np

from kvscope.engine.marks import Marks
from kvscope.engine.overflow.policy import Victim
from kvscope.engine.overflow.recompute import Recompute
from kvscope.engine.port import Engine
from kvscope.engine.recording import Recording
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.run.serving import serve
from kvscope.workload.requests import Request

from .cases import AMPLE, BASE, BATCHING
from .conftest import ROOT, Silent, last_of_each_key

VICTIMS = ("last", "first", "longest", "shortest", "least_computed", "most_computed", "random")
SCARCE = ("cache.blocks=9", "cache.prefix_caching=true")
LONGEST = 160
OVERFLOW = {
    "recompute": ("overflow=recompute",),
    "fullest first": ("overflow=recompute",),  # ranked by `fullest_first`
    "swap": ("overflow=swap", "overflow.host_blocks=64"),
    "swap, small pool": ("overflow=swap", "overflow.host_blocks=4"),
    "activation": ("overflow=activation", "overflow.host_blocks=64"),
    "activation, small pool": ("overflow=activation", "overflow.host_blocks=6"),
    "adaptive": ("overflow=adaptive", "overflow.host_blocks=6", "overflow.hardware=h100"),
}


def fullest_first(policy: Recompute, request: Victim) -> float:
    """The rank of a request by how full its last block is: most are scheduled when they lose it."""
    return float(request.tokens % 32)


# Settings that do not depend on the device, as on a CPU.
DRY = ("device=dry",)
CASES = [f"{batching}, {overflow}" for batching in BATCHING for overflow in OVERFLOW]
BY_VICTIM = "; victim "
VICTIM_CASES = [
    f"{batching}, {overflow}{BY_VICTIM}{victim}"
    for (one, victim), (two, batching) in product(enumerate(VICTIMS), enumerate(BATCHING))
    for overflow in [[name for name in OVERFLOW if name != "fullest first"][(one + two) % 6]]
]
"""Each rule for victims with every batching policy, and in turn with an overflow policy."""


def experiment(*words: str) -> Experiment:
    """The experiment of these settings; the last of several for one key counts."""
    if "overflow=recompute" in words:
        words = tuple(word for word in words if not word.startswith("overflow.host"))
    planned = expand(None, last_of_each_key([*BASE, *words]), ROOT / "config").experiments
    return planned[0].experiment


def requests(seed: int) -> list[Request]:
    """Requests of a few prefixes, of which some end within a block, and some are whole prompts."""
    draw = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(3, 500) for _ in range(count)]

    prefixes = [tokens(draw.choice([0, 31, 32, 40, 64, 96])) for _ in range(draw.randint(1, 3))]
    results: list[Request] = []
    for number in range(draw.randint(5, 10)):
        prompt = draw.choice(prefixes) + tokens(draw.choice([1, 1, 9, 32, 50]))
        if results and draw.random() < 0.2:
            prompt = draw.choice(results).prompt_token_ids.tolist()
        output = draw.randint(1, LONGEST - len(prompt))
        results.append(Request(str(number), 0.0, np.array(prompt, np.int32), output))
    return results


def ranked(case: str) -> AbstractContextManager[Any]:
    """Within the context, `recompute` has the ranks of the case."""
    fullest = case.endswith("fullest first")
    return mock.patch.object(Recompute, "rank", fullest_first) if fullest else nullcontext()


def serve_seed(engine: Engine, seed: int) -> tuple[dict[str, list[int]], Recording]:
    """The tokens and the recording of one seed's requests; the prefix cache is empty before."""
    engine.empty_prefix_cache()
    recording = Recording()
    engine.begin(recording, Marks())
    return serve(engine, requests(seed), Silent()).outputs, recording


def told(recording: Recording) -> dict[str, list[Any]]:
    """Tables without times and token ids."""
    return {
        "passes": [
            [(row.request_id, row.computed, row.cached, row.hit) for row in record.batch()]
            for record in recording.passes
        ],
        "free": [record.kv_blocks_free for record in recording.passes],
        "preemptions": [
            (
                preemption.step,
                preemption.request_id,
                preemption.tokens,
                preemption.blocks,
                preemption.shared,
                preemption.action.name,
            )
            for preemption in recording.preemptions
        ],
        "hits": recording.hits,
        "evictions": recording.evictions,
        "copies": [
            (transfer.step, transfer.request_id, transfer.direction)
            for transfer in recording.transfers
        ],
    }


def served(seeds: range, case: str, *device: str) -> tuple[dict[int, Any], int]:
    """Tokens and recording of each seed under a case's policies, and the blocks left in use."""
    from kvscope.engine.devices.platform import platform_of
    from kvscope.engine.vllm.build import run_engine

    policies, _, victim = case.partition(BY_VICTIM)
    batching, _, overflow = policies.partition(", ")
    words = (*SCARCE, *BATCHING[batching], *OVERFLOW[overflow], *device)
    words += (f"overflow.victim={victim}",) * bool(victim)
    with ranked(case), run_engine(platform_of(experiment(*words))) as engine:
        result = {seed: serve_seed(engine, seed) for seed in seeds}
        return result, engine.kv_blocks_used + engine.host_blocks_used


def compared(seeds: range, cases: list[str]) -> Iterator[dict[str, Any]]:
    """For each case, over all seeds: the differences, and the counts of what was compared."""
    from kvscope.engine.devices.platform import platform_of
    from kvscope.engine.vllm.build import run_engine

    with run_engine(platform_of(experiment(*AMPLE))) as engine:
        expected = {seed: serve_seed(engine, seed)[0] for seed in seeds}
    measured = [served(seeds, case) for case in cases]
    for case, (found, left) in zip(cases, measured, strict=True):
        dry, _ = served(seeds, case, *DRY)
        known = {seed: (told(found[seed][1]), told(dry[seed][1])) for seed in seeds}
        yield {
            "case": case,
            "left": left,
            "tokens": [seed for seed in seeds if found[seed][0] != expected[seed]],
            "dry": [
                (seed, key)
                for seed, (one, other) in known.items()
                for key in one
                if one[key] != other[key]
            ],
            **{key: sum(len(one[key]) for one, _ in known.values()) for key in COUNTED},
            "shared": sum(lost[4] for one, _ in known.values() for lost in one["preemptions"]),
        }


def uncomputed(recording: Recording) -> list[Any]:
    """The blocks that were in the prefix cache though no pass filled them with tokens."""
    owners = [{row.request_id for row in record.batch()} for record in recording.passes]
    cached = [hit.found for hit in recording.hits] + [
        eviction.lost for eviction in recording.evictions
    ]
    return [block for block in cached if block.owner not in owners[block.step]]


COUNTED = ("preemptions", "hits", "evictions")


def uncomputed_blocks(seeds: range, forgets: bool = True) -> list[Any]:
    """Blocks of requests that often lose their blocks in the schedule that was to fill one."""
    from kvscope.engine.vllm.prefix_cache import PrefixCache

    forget = mock.patch.object(PrefixCache, "forget_uncomputed")
    with nullcontext() if forgets else forget:
        result, _ = served(seeds, "mixed, fullest first", *DRY)
    return [block for _, recording in result.values() for block in uncomputed(recording)]
