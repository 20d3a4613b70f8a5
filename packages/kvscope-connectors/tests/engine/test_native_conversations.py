"""Conversations with vLLM's offloading and a prefix cache, on the modeled device: oracles hold.

A request may find blocks in the prefix cache and wait for others to be loaded from the host, while
further requests find the same blocks, are preempted or end.
"""

from itertools import product
from random import Random

import pytest

from kvscope.judge.records import read_records
from kvscope.tables.verdict import HELD, VIOLATED
from tests.engine.conftest import directory_of
from tests.engine.forged_runs import found, noticed
from tests.warm import Warm

pytestmark = [pytest.mark.engine, pytest.mark.slow]

WORDS = (
    *("device=modeled", "device.hardware=a100-80gb", "cache.prefix_caching=true"),
    *("cache.admission=vllm", "cache.watermark=0", "cache.block_size=16"),
    *("engine.max_model_len=384", "engine.max_num_batched_tokens=512", "profiler=none"),
    *("workload=multi-turn", "workload.system_tokens=60", "workload.first_tokens=80"),
    *("workload.growth_tokens=40", "workload.output_tokens=30", "workload.max_tokens=380"),
)
BATCHING = {
    "prefill_first": ("batching=prefill_first",),
    "mixed": ("batching=mixed",),
    "chunked": ("batching=chunked", "batching.chunk_tokens=192"),
}
FULL_HOST = {("native", "mixed", 4, 3), ("native_full", "mixed", 4, 1)}
"""Settings with which the host drops blocks, and a request is loaded or stored again later."""
LOADS_FIRST = {("native_full", "prefill_first", 2, 0), ("native_full", "prefill_first", 2, 3)}
"""Settings with which a schedule finds no prompt to prefill after it has begun loads."""


def is_shown(overflow: str, batching: str, oversubscription: int, seed: int) -> bool:
    """Whether a combination is not exhaustive: one seed of most, and those above."""
    case = overflow, batching, oversubscription, seed
    return case in FULL_HOST | LOADS_FIRST or (oversubscription != 2 and not seed)


CASES = [
    pytest.param(*case, marks=[pytest.mark.exhaustive] * (not is_shown(*case)))
    for case in product(("native", "native_full"), BATCHING, (1, 2, 4), range(4))
]


def words_of(overflow: str, batching: str, oversubscription: int, seed: int) -> list[str]:
    """Random conversations over a link of random speed, so that loads take some passes or none."""
    random = Random(f"{overflow} {batching} {oversubscription} {seed}")
    link = random.choice([2e8, 2e9, 2e10])
    return [
        *(*WORDS, f"overflow={overflow}", *BATCHING[batching], f"seed={seed}"),
        f"cache.oversubscription={oversubscription}",
        f"workload.num_conversations={random.choice([8, 10, 16])}",
        f"workload.system_prompts={random.choice([1, 3])}",
        f"workload.turns={random.choice([2, 4, 8])}",
        f"workload.think_s={random.choice([0.0, 0.002, 0.05])}",
        f"overflow.host_blocks={random.choice([60, 400, 4000])}",
        f"device.constants={{pinned_in_bytes_per_s: {link}, pinned_out_bytes_per_s: {link}}}",
    ]


@pytest.mark.parametrize(("overflow", "batching", "oversubscription", "seed"), CASES)
@pytest.mark.thorough
def test_random_conversations_hold(
    warm: Warm, overflow: str, batching: str, oversubscription: int, seed: int
) -> None:
    words = words_of(overflow, batching, oversubscription, seed)
    run = read_records(directory_of(warm, words, "native_conversations"))
    assert found(run, VIOLATED) == set(), words
    assert "differs_from_replay" in found(run, HELD)


def test_a_loading_request_holds_the_blocks_that_it_found(warm: Warm) -> None:
    words = words_of("native_full", "chunked", 4, seed=0)
    run = read_records(directory_of(warm, words, "native_conversations"))
    assert found(run, VIOLATED) == set()
    assert len(run.loaded.query("first_block > 0")), "no request finds blocks and loads others"
    others = run.preemptions.query("shared_blocks > 0")
    assert len(others), "no victim shares blocks"
    fewer = run.preemptions.copy()
    fewer.loc[others.index[0], "shared_blocks"] -= 1
    assert "preemptions.shared_blocks" in noticed(run.variant(preemptions=fewer))
    in_use = run.hits["in_use"].astype(bool)
    assert "hits.in_use" in noticed(run.variant(hits=run.hits.assign(in_use=~in_use)))
    assert "hits.rows" in noticed(run.variant(hits=run.hits[~in_use]))
