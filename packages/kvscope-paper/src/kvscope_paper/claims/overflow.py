"""Claims on recomputation and swap: Figures 7 to 11."""

from collections.abc import Sequence

from kvscope.api.sections import ReportedRun
from kvscope.api.wording import wording
from kvscope.api.words import quantities
from kvscope_paper.claims.batching import LLAMA, OPT, REQUESTS, SHORT, YARN
from kvscope_paper.claims.judging import (
    FAILS,
    HOLDS,
    IN_PART,
    LITTLE,
    POINT,
    TIE,
    UNKNOWN,
    Finding,
    by_count,
    span,
    within,
)
from kvscope_paper.claims.values import POLICIES, RECOMPUTE, SWAP, Values, edge
from kvscope_paper.comparison import Comparison

NAMES = {RECOMPUTE: "recomputation", SWAP: "swap"}
ALMOST_20 = 0.15
BLOCK_SIZE, BLOCKS = "cache.block_size", "cache.blocks"
EVICTED = {125: "1K", 187: "2K", 312: "4K", 562: "8K", 1062: "16K"}  # by blocks: Figure 8b
MEMORY_GB = {758: 6, 1262: 10, 1766: 14, 2271: 18, 2775: 22, 3027: 24}  # by blocks: Figure 10a
ONE_LENGTH = ("workload.prompt_tokens", "workload.output_tokens")
MANY_LENGTHS = ("workload.max_tokens",)


def against_recompute(saved: float) -> str:
    """Cost of swap against recomputation, in words."""
    return f"{wording.percent(abs(saved))} {'less' if saved >= 0 else 'more'}"


def resumptions(values: Values) -> Finding | None:
    """Finding on whether resumptions are prefills under recomputation, and only there."""
    prefills = {}
    for policy in (RECOMPUTE, SWAP):
        runs = values.runs("11b", overflow__name=policy)
        if not runs:
            return None
        steps = runs[0].steps(0)
        resumed = steps[steps["resumed_requests"] > 0]
        prefills[policy] = int((resumed["phase"] != "decode").sum()), len(resumed)
    (recomputed, all_recomputed), (swapped, all_swapped) = prefills.values()
    return by_count(
        [recomputed == all_recomputed > 0, swapped == 0 < all_swapped],
        f"In Figure 11b's experiment {recomputed:,} of {all_recomputed:,} passes that resume "
        f"requests are prefills with recomputation, {swapped:,} of {all_swapped:,} with swap.",
    )


def recompute_by_block_size(values: Values, figure: str) -> Finding | None:
    """Finding on whether the block size has little effect on recomputation."""
    costs = [comparison.as_timed for comparison in values.of(figure, overflow__name=RECOMPUTE)]
    if len(costs) < 2:
        return None
    spread = max(costs) / min(costs) - 1
    return Finding(
        HOLDS if within(spread, LITTLE) else FAILS,
        f"Between block sizes recomputation differs by {wording.percent(spread)} at most.",
    )


def swap_by_block_size(values: Values, figure: str) -> Finding | None:
    """Finding on whether every kind of swap costs more with every smaller block."""
    series = values.series(figure, BLOCK_SIZE, overflow__name=SWAP)
    series = [group for group in series if len(group) > 1]
    steps = values.steps(figure, BLOCK_SIZE, overflow__name=SWAP)
    words = quantities.join_words(
        [
            f"{group[0].point.x} cost {group[0].as_timed / group[-1].as_timed:.1f} times those of "
            f"{group[-1].point.x} tokens "
            f"({group[0].point.settings['overflow.host_memory']})"
            for group in series
        ]
        or [""]
    )
    return by_count(
        [b.as_timed < a.as_timed for a, b in steps],
        f"{{}} doublings of the block make swap cheaper; blocks of {words}.",
    )


def pageable(values: Values) -> Finding | None:
    recompute = {
        comparison.point.x: comparison.as_timed
        for comparison in values.of("8a", overflow__name=RECOMPUTE)
    }
    ratios = [
        comparison.as_timed / recompute[comparison.point.x]
        for comparison in values.of("8a", overflow__name=SWAP, overflow__host_memory="pageable")
        if comparison.point.x in recompute
    ]
    if not ratios:
        return None
    return by_count(
        [ratio > 1 for ratio in ratios],
        f"Swap to pageable memory costs {min(ratios):.1f} to {max(ratios):.1f} times as much.",
    )


def from_block_size(values: Values, figure: str, size: int) -> Finding | None:
    """Finding on whether pinned swap is cheaper than recomputation from a block size on."""
    edges = {pair[0].point.x: edge(pair) for pair in values.pairs(figure)}
    if size not in edges:
        return None
    words = ", ".join(f"{against_recompute(edges[x])} with {x}" for x in sorted(edges) if x >= size)
    tie = abs(edges[size]) < TIE
    equal = f" With {size} the two are as good as equal." if tie else ""
    return Finding(
        UNKNOWN if tie else HOLDS if edges[size] > 0 else FAILS,
        f"Swap costs {words} tokens a block.{equal}",
    )


def rises(
    values: Values, figure: str, along: Sequence[str], what: str, falls: bool = False
) -> Finding | None:
    """Finding on an overhead that rises (or falls) with each setting, for both policies."""
    steps = [pair for policy in POLICIES for pair in values.steps(figure, *along, **policy)]
    right = [(b.as_timed < a.as_timed) == falls for a, b in steps if a.as_timed != b.as_timed]
    return by_count(right, f"So it is in {{}} steps {what}.")


def growing_edge(values: Values) -> Finding | None:
    """Finding on an edge that grows with evicted tokens, to almost 20 % in the last two cases."""
    by_blocks = {pair[0].point.x: edge(pair) for pair in values.pairs("8b")}
    if len(by_blocks) < len(EVICTED):
        return None
    edges = [by_blocks[blocks] for blocks in EVICTED]
    words = ", ".join(f"{against_recompute(by_blocks[x])} ({EVICTED[x]})" for x in EVICTED)
    right = [edges == sorted(edges), *(saved >= ALMOST_20 for saved in edges[-2:])]
    return by_count(right, f"Swap costs {words}.")


def lengths(values: Values) -> Finding | None:
    steps = [
        pair
        for along in (ONE_LENGTH, MANY_LENGTHS)
        for pair in values.steps("9", *along)
        if pair[0].as_timed or pair[1].as_timed
    ]
    return by_count([b.as_timed > a.as_timed for a, b in steps], "So it is in {} steps of lengths.")


def long_fixed(values: Values) -> Finding | None:
    edges = [edge(pair) for pair in values.pairs("9", workload__prompt_tokens=4096)]
    if not edges:
        return None
    return by_count(
        [saved > LITTLE for saved in edges],
        f"With 4,096 tokens of prompt and as many of output, swap costs {span(edges)} less.",
    )


def everywhere(values: Values) -> Finding | None:
    edges = [edge(pair) for pair in values.pairs("9")]
    if not edges:
        return None
    worst = against_recompute(min(edges))
    return by_count(
        [saved > 0 for saved in edges],
        f"Swap is cheaper in {{}} cases that evict; in the worst it costs {worst}.",
    )


def requests(values: Values) -> Finding | None:
    ratios = [b.as_timed / a.as_timed for a, b in values.steps("9", REQUESTS) if a.as_timed]
    if not ratios:
        return None
    return by_count(
        [ratio >= 2 for ratio in ratios],
        f"Twice the requests cost twice as much or more in {{}} cases; {min(ratios):.2f} times at "
        "least.",
    )


def scarce_and_ample(values: Values) -> Finding | None:
    edges = {MEMORY_GB[pair[0].point.x]: edge(pair) for pair in values.pairs("10a")}
    if len(edges) < len(MEMORY_GB):
        return None
    words = ", ".join(f"{against_recompute(edges[gb])} at {gb}" for gb in sorted(edges))
    return by_count([edges[min(edges)] > TIE, edges[max(edges)] < -TIE], f"Swap costs {words} GB.")


def _by_model(values: Values) -> dict[str, tuple[Comparison, Comparison]]:
    pairs = {pair[0].point.x: pair for pair in values.pairs("10b")}
    return pairs if pairs.keys() >= SHORT.keys() else {}


def most_and_least(values: Values) -> Finding | None:
    pairs = _by_model(values)
    if not pairs:
        return None
    right = [
        most == OPT and least == LLAMA
        for most, *_, least in (
            sorted(pairs, key=lambda model: -pairs[model][policy].as_timed) for policy in (0, 1)
        )
    ]
    words = ", ".join(
        f"{SHORT[model]} {a.as_timed:.3g} and {b.as_timed:.3g} s"
        for model in (OPT, YARN, LLAMA)
        for a, b in (pairs[model],)
    )
    return by_count(right, f"With recomputation and with swap: {words}.")


def most_evictions(values: Values) -> Finding | None:
    """Finding by evictions under recomputation."""
    runs = {model: pair[0].run for model, pair in _by_model(values).items()}
    counts = {model: run.number("preemptions").value for model, run in runs.items() if run}
    if len(counts) < len(SHORT):
        return None
    words = quantities.join_words(
        [f"{counts[model]:,.0f} ({SHORT[model]})" for model in (OPT, YARN, LLAMA)]
    )
    return Finding(
        HOLDS if counts[OPT] > max(counts[YARN], counts[LLAMA]) else FAILS,
        f"Requests are evicted {words} times.",
    )


def edge_of_opt(values: Values) -> Finding | None:
    edges = {model: edge(pair) for model, pair in _by_model(values).items()}
    if not edges:
        return None
    words = ", ".join(f"{against_recompute(edges[m])} ({SHORT[m]})" for m in (OPT, YARN, LLAMA))
    return by_count(
        [edges[OPT] > LITTLE, edges[OPT] > max(edges[YARN], edges[LLAMA])], f"Swap costs {words}."
    )


def for_most(values: Values) -> Finding | None:
    """Finding by majority of the experiments of each figure, beside their makespans."""
    wins = {figure: [edge(pair) > 0 for pair in values.pairs(figure)] for figure in ("8b", "9")}
    if not all(wins.values()):
        return None
    words = quantities.join_words(
        [f"{sum(group)} of {len(group)} (Figure {figure})" for figure, group in wins.items()]
    )
    return by_count(
        [sum(group) > len(group) / 2 for group in wins.values()],
        f"Swap is cheaper in {words}.{_makespans(values)}",
    )


def _makespans(values: Values) -> str:
    shares = []
    for a, b in (*values.pairs("10a"), *values.pairs("10b")):
        if a.run and b.run:
            times = [run.number("makespan_s").value for run in (a.run, b.run)]
            shares.append(abs(times[0] - times[1]) / max(times))
    if not shares:
        return ""
    return (
        f" Makespans of Figure 10's experiments differ by {wording.percent(max(shares))} at most."
    )


def _first(values: Values, figure: str, policy: str) -> ReportedRun | None:
    runs = values.runs(figure, overflow__name=policy)
    return runs[0] if runs else None


def one_eviction(values: Values) -> Finding | None:
    run = _first(values, "11a", RECOMPUTE)
    if run is None:
        return None
    first = run.steps(0).iloc[0]
    used = float(first["kv_blocks_used"] / first["kv_blocks_total"])
    evicted, resumed = (_time_of(run, event) for event in ("preempt", "resume"))
    return by_count(
        [
            within(used / 0.95 - 1, LITTLE / 2) and within(first["duration_s"] / 1.2 - 1, LITTLE),
            within(evicted / 15 - 1, LITTLE),
            within(resumed / 24.5 - 1, LITTLE),
        ],
        f"The cache is {wording.percent(used)} full after {first['duration_s']:.2f} s; eviction at "
        f"{evicted:.1f} s, resumption at {resumed:.1f} s.",
    )


def _time_of(run: ReportedRun, event: str) -> float:
    events = run.preemptions(0)
    return float(events.loc[events["event"] == event, "time_s"].min())


def interruptions(values: Values) -> Finding | None:
    """Finding on the durations of the passes of eviction and resumption, by policy."""
    runs = {policy: _first(values, "11a", policy) for policy in (RECOMPUTE, SWAP)}
    longest = {p: (_pause(run, "preempt"), _pause(run, "resume")) for p, run in runs.items() if run}
    if len(longest) < len(runs):
        return None
    usual = max(_usual(run) for run in runs.values() if run)
    stops = {policy: [pause > 3 * usual for pause in pauses] for policy, pauses in longest.items()}
    words = quantities.join_words(
        [
            f"{1e3 * a:,.0f} and {1e3 * b:,.0f} ms with {NAMES[policy]}"
            for policy, (a, b) in longest.items()
        ]
    )
    return by_count(
        [stops[SWAP] == [True, True], stops[RECOMPUTE] == [False, True]],
        f"The passes of the eviction and of the resumption take {words}, decode passes "
        f"{1e3 * usual:,.0f} ms at most.",
    )


def _usual(run: ReportedRun) -> float:
    """Seconds that nearly all decode passes stay below."""
    steps = run.steps(0)
    return float(steps.loc[steps["phase"] == "decode", "duration_s"].quantile(0.99))


def _pause(run: ReportedRun, event: str) -> float:
    events = run.preemptions(0)
    passes = events.loc[events["event"] == event, "step"]
    steps = run.steps(0)
    return float(steps.loc[steps["step"].isin(passes), "duration_s"].max())


def stays_full(values: Values, figure: str) -> Finding | None:
    """Finding on whether the cache, once full, stays within 80 and 100 % to the end."""
    runs = [run for policy in (RECOMPUTE, SWAP) if (run := _first(values, figure, policy))]
    if not runs:
        return None
    shares, ends = zip(*(_time_full(run) for run in runs), strict=True)
    words = " and ".join(f"{last:,.0f} of {whole:,.0f} s" for last, whole in ends)
    return Finding(
        HOLDS if min(shares) == 1 else IN_PART if min(shares) > 1 / 2 else FAILS,
        f"It is 80 % full or more in {span(shares)} of the passes, for the last time after "
        f"{words}.",
    )


def _time_full(run: ReportedRun) -> tuple[float, tuple[float, float]]:
    """Share of passes with 80 % of the cache in use; when that ends, and when the run does."""
    steps = run.steps(0)
    end_s = steps["start_s"] + steps["duration_s"]
    full = steps["kv_blocks_used"] >= 0.8 * steps["kv_blocks_total"]
    return float(full.mean()), (float(end_s[full].max()), float(end_s.max()))


def host_pool(
    values: Values, figure: str, seconds: float, peak: float, later: float
) -> Finding | None:
    """The share of the host pool in use: its peak in so many seconds, and its most after them.

    Both are said in whole percent, and read as within one of them.
    """
    run = _first(values, figure, SWAP)
    if run is None:
        return None
    steps = run.steps(0)
    share = steps["host_blocks_used"] / steps["host_blocks_total"]
    early = steps["start_s"] < seconds
    highest, rest = float(share[early].max()), float(share[~early].max())
    return by_count(
        [abs(highest - peak) <= POINT, rest <= later + POINT],
        f"{wording.percent(highest)} at most in the first {seconds:.0f} s, then "
        f"{wording.percent(rest)}.",
    )
