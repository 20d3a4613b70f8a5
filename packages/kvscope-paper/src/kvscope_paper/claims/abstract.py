"""Claims of the extended abstract and its poster, which show the same figures."""

from kvscope.passes import DECODE
from kvscope_paper.claims.judging import (
    HOLDS,
    IN_PART,
    NOT_PUBLISHED,
    TIE,
    UNKNOWN,
    Claim,
    Finding,
    by_count,
)
from kvscope_paper.claims.overflow import (
    BLOCKS,
    EVICTED,
    against_recompute,
    from_block_size,
    recompute_by_block_size,
    rises,
    swap_by_block_size,
)
from kvscope_paper.claims.values import PINNED, RECOMPUTE, Values, edge

# Shares of the memory that are cache, in percent, by blocks: the abstract's Figure 3b.
MEMORY = {505: 10, 1010: 20, 1514: 30, 2019: 40, 2524: 50, 3029: 60}
FACTORS = "abstract III-B (poster, Figures 2 to 5)"
USE = "abstract III-C (poster, Figure 6)"


def _many_evicted(values: Values) -> Finding | None:
    edges = {pair[0].point.x: edge(pair) for pair in values.pairs("abstract 2b")}
    if len(edges) < len(EVICTED):
        return None
    words = ", ".join(f"{against_recompute(edges[x])} ({EVICTED[x]})" for x in EVICTED)
    return by_count([edges[x] > TIE for x in (562, 1062)], f"Swap costs {words}.")


def _up_to_40(values: Values) -> Finding | None:
    steps = [
        (a, b)
        for policy in ({"overflow__name": RECOMPUTE}, PINNED)
        for a, b in values.steps("abstract 3b", BLOCKS, **policy)
        if MEMORY[b.point.x] <= 40
    ]
    return by_count(
        [b.as_timed < a.as_timed for a, b in steps], "So it is in {} steps of 10 % of the memory."
    )


def _evictions(values: Values) -> Finding | None:
    """Of passes that preempt and of prefills: in how many the use falls, and throughput rises."""
    fell, rose = [], []
    for run in values.drawn("abstract 4"):
        steps, lost = run.steps(0), run.preemptions(0)
        preempting = steps["step"].isin(lost.loc[lost["event"] == "preempt", "step"])
        fell += (steps["kv_blocks_used"].diff() < 0)[preempting].tolist()
        throughput = steps["scheduled_tokens"] / steps["duration_s"]
        decode = steps["phase"] == DECODE
        rose += (throughput > throughput[decode].median())[~decode].tolist()
    return by_count(
        [*fell, *rose],
        f"The use falls in {sum(fell):,} of {len(fell):,} passes that preempt; throughput of "
        f"{sum(rose):,} of {len(rose):,} passes with a prefill is above that of decode passes.",
    )


def _lowest(values: Values) -> Finding | None:
    lowest = []
    for policy in ({"overflow__name": RECOMPUTE}, PINNED):
        own = values.of("abstract 3b", **policy)
        if len(own) < len(MEMORY):
            return None
        lowest.append(MEMORY[min(own, key=lambda one: one.as_timed).point.x])
    return by_count(
        [share in (30, 50) for share in lowest],
        f"Recomputation costs least with {lowest[0]} %, swap with {lowest[1]} %.",
    )


def _longer(values: Values) -> Finding | None:
    """The experiments of the figure have one length, so that nothing decides it."""
    return Finding(UNKNOWN, ONE_LENGTH) if values.of("abstract 3a") else None


def _long_sequences(values: Values) -> Finding | None:
    edges = {pair[0].point.x: edge(pair) for pair in values.pairs("abstract 3a")}
    if not edges:
        return None
    words = ", ".join(f"{against_recompute(edges[x])} ({x:,})" for x in sorted(edges))
    return by_count(
        [saved > TIE for saved in edges.values()],
        f"Of 8,192 tokens, swap costs by those of the prompt: {words}.",
    )


ONE_LENGTH = (
    "All sequences of this figure have 8,192 tokens; only the share of the prompt differs. That "
    "longer ones cost more, Figure 9 tells."
)

CLAIMS = (
    Claim(
        ("abstract 2a",),
        FACTORS,
        "The block size has very little effect on the cost of recomputation.",
        Finding(HOLDS, "Between block sizes recomputation differs by 4.4 % at most."),
        recompute_by_block_size("abstract 2a"),
    ),
    Claim(
        ("abstract 2a",),
        FACTORS,
        "Swap gets cheaper with larger blocks.",
        Finding(
            HOLDS,
            "5 of 5 doublings of the block make swap cheaper; blocks of 2 cost 4.5 times those of "
            "64 tokens (pinned). The values of pageable memory are not published.",
        ),
        swap_by_block_size("abstract 2a"),
    ),
    Claim(
        ("abstract 2a",),
        FACTORS,
        "With large blocks, swap to pinned memory is the better one.",
        Finding(HOLDS, "Swap costs 6.4 % less with 16, 21 % with 32, 34 % with 64 tokens a block."),
        from_block_size("abstract 2a", 32),
    ),
    Claim(
        ("abstract 2b",),
        FACTORS,
        "Both policies cost more the more tokens are evicted.",
        Finding(HOLDS, "So it is in 8 of 8 steps of evicted tokens."),
        rises("abstract 2b", BLOCKS, "workload.path", what="of evicted tokens"),
    ),
    Claim(
        ("abstract 2b",),
        FACTORS,
        "Swap is cheaper when many tokens are evicted.",
        Finding(
            HOLDS,
            "Swap costs 2.7 % less with 4K, 8.6 % with 8K and 19 % with 16K; with 1K and 2K the "
            "two are equal.",
        ),
        _many_evicted,
    ),
    Claim(
        ("abstract 3a",),
        FACTORS,
        "Both policies cost more the longer the sequences.",
        Finding(UNKNOWN, ONE_LENGTH),
        _longer,
    ),
    Claim(
        ("abstract 3a",),
        FACTORS,
        "Swap is cheaper with long sequences.",
        Finding(
            HOLDS,
            "Of 8,192 tokens, swap costs by those of the prompt: 4.5 % less (2,048), 29 % less "
            "(4,096), 69 % less (6,144). A first try of the same runs differs by up to 37 %.",
        ),
        _long_sequences,
    ),
    Claim(
        ("abstract 3b",),
        FACTORS,
        "Both policies cost less the more of the memory is cache, up to 40 %.",
        Finding(
            IN_PART, "So it is in 5 of 6 steps of 10 % of the memory; swap rises from 30 to 40 %."
        ),
        _up_to_40,
    ),
    Claim(
        ("abstract 3b",),
        FACTORS,
        "They cost least with 30 or 50 % of the memory.",
        Finding(HOLDS, "Recomputation costs least with 50 %, swap with 50 %."),
        _lowest,
    ),
    Claim(
        ("abstract 4",),
        USE,
        "With 12 % of the memory, throughput rises at intervals with the prefills of waiting and "
        "resumed requests, and the use of the cache falls with each eviction.",
        Finding(UNKNOWN, NOT_PUBLISHED),
        _evictions,
    ),
)
