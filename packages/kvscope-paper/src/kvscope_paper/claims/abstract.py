"""Claims of the extended abstract and its poster, which show the same figures."""

from kvscope.api.tables import passes
from kvscope_paper.claims.judging import (
    TIE,
    Finding,
    by_count,
)
from kvscope_paper.claims.overflow import (
    BLOCKS,
    EVICTED,
    against_recompute,
)
from kvscope_paper.claims.values import POLICIES, Values, edge

# Shares of the memory that are cache, in percent, by blocks: the abstract's Figure 3b.
MEMORY = {505: 10, 1010: 20, 1514: 30, 2019: 40, 2524: 50, 3029: 60}


def many_evicted(values: Values) -> Finding | None:
    edges = {pair[0].point.x: edge(pair) for pair in values.pairs("abstract 2b")}
    if len(edges) < len(EVICTED):
        return None
    words = ", ".join(f"{against_recompute(edges[x])} ({EVICTED[x]})" for x in EVICTED)
    return by_count([edges[x] > TIE for x in (562, 1062)], f"Swap costs {words}.")


def up_to_40(values: Values) -> Finding | None:
    steps = [
        (a, b)
        for policy in POLICIES
        for a, b in values.steps("abstract 3b", BLOCKS, **policy)
        if MEMORY[b.point.x] <= 40
    ]
    return by_count(
        [b.as_timed < a.as_timed for a, b in steps], "So it is in {} steps of 10 % of the memory."
    )


def evictions(values: Values) -> Finding | None:
    """Counts of preempting passes in which use falls, and of prefills in which throughput rises."""
    fell, rose = [], []
    for run in values.drawn("abstract 4"):
        steps, lost = run.steps(0), run.preemptions(0)
        preempting = steps["step"].isin(lost.loc[lost["event"] == "preempt", "step"])
        fell += (steps["kv_blocks_used"].diff() < 0)[preempting].tolist()
        throughput = steps["scheduled_tokens"] / steps["duration_s"]
        decode = steps["phase"] == passes.DECODE
        rose += (throughput > throughput[decode].median())[~decode].tolist()
    return by_count(
        [*fell, *rose],
        f"The use falls in {sum(fell):,} of {len(fell):,} passes that preempt; throughput of "
        f"{sum(rose):,} of {len(rose):,} passes with a prefill is above that of decode passes.",
    )


def lowest(values: Values) -> Finding | None:
    lowest = []
    for policy in POLICIES:
        comparisons = values.of("abstract 3b", **policy)
        if len(comparisons) < len(MEMORY):
            return None
        lowest.append(MEMORY[min(comparisons, key=lambda comparison: comparison.as_timed).point.x])
    return by_count(
        [set(lowest) <= {30, 50}, 30 in lowest],
        f"Recomputation costs least with {lowest[0]} %, swap with {lowest[1]} %.",
    )


def long_sequences(values: Values) -> Finding | None:
    edges = {pair[0].point.x: edge(pair) for pair in values.pairs("abstract 3a")}
    if not edges:
        return None
    words = ", ".join(f"{against_recompute(edges[x])} ({x:,})" for x in sorted(edges))
    return by_count(
        [saved > TIE for saved in edges.values()],
        f"Of 8,192 tokens, swap costs by those of the prompt: {words}.",
    )
