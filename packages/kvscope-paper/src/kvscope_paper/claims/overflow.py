"""Claims on recomputation and swap: Figures 7 to 11."""

from kvscope.report.data import Run
from kvscope.report.words import join_words, percent
from kvscope_paper.claims.batching import LLAMA, OPT, REQUESTS, SHORT, YARN
from kvscope_paper.claims.judging import (
    FAILS,
    HOLDS,
    IN_PART,
    LITTLE,
    NOT_PUBLISHED,
    TIE,
    UNKNOWN,
    Claim,
    Finding,
    Judge,
    by_count,
    span,
    within,
)
from kvscope_paper.claims.values import PINNED, RECOMPUTE, SWAP, Values, edge
from kvscope_paper.comparison import Comparison

NAMES = {RECOMPUTE: "recomputation", SWAP: "swap"}
ALMOST_20 = 0.15
BLOCK_SIZE, BLOCKS = "cache.block_size", "cache.blocks"
EVICTED = {125: "1K", 187: "2K", 312: "4K", 562: "8K", 1062: "16K"}  # by blocks: Figure 8b
MEMORY_GB = {758: 6, 1262: 10, 1766: 14, 2271: 18, 2775: 22, 3027: 24}  # by blocks: Figure 10a
ONE_LENGTH = ("workload.prompt_tokens", "workload.output_tokens")
MANY_LENGTHS = ("workload.max_tokens",)


def against_recompute(saved: float) -> str:
    """What swap costs against recomputation, in words."""
    return f"{percent(abs(saved))} {'less' if saved >= 0 else 'more'}"


def _resumptions(values: Values) -> Finding | None:
    """Whether resumptions are prefills under recomputation, and only there."""
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


def recompute_by_block_size(figure: str) -> Judge:
    """Whether the block size has little effect on recomputation."""

    def judge(values: Values) -> Finding | None:
        costs = [one.as_timed for one in values.of(figure, overflow__name=RECOMPUTE)]
        if len(costs) < 2:
            return None
        spread = max(costs) / min(costs) - 1
        return Finding(
            HOLDS if within(spread, LITTLE) else FAILS,
            f"Between block sizes recomputation differs by {percent(spread)} at most.",
        )

    return judge


def swap_by_block_size(figure: str) -> Judge:
    """Whether every kind of swap costs more with every smaller block."""

    def judge(values: Values) -> Finding | None:
        series = values.series(figure, BLOCK_SIZE, overflow__name=SWAP)
        series = [own for own in series if len(own) > 1]
        steps = values.steps(figure, BLOCK_SIZE, overflow__name=SWAP)
        words = join_words(
            [
                f"{own[0].point.x} cost {own[0].as_timed / own[-1].as_timed:.1f} times those of "
                f"{own[-1].point.x} tokens "
                f"({own[0].point.settings['overflow.host_memory']})"
                for own in series
            ]
            or [""]
        )
        return by_count(
            [b.as_timed < a.as_timed for a, b in steps],
            f"{{}} doublings of the block make swap cheaper; blocks of {words}.",
        )

    return judge


def _pageable(values: Values) -> Finding | None:
    recompute = {one.point.x: one.as_timed for one in values.of("8a", overflow__name=RECOMPUTE)}
    ratios = [
        one.as_timed / recompute[one.point.x]
        for one in values.of("8a", overflow__name=SWAP, overflow__host_memory="pageable")
        if one.point.x in recompute
    ]
    if not ratios:
        return None
    return by_count(
        [ratio > 1 for ratio in ratios],
        f"Swap to pageable memory costs {min(ratios):.1f} to {max(ratios):.1f} times as much.",
    )


def from_block_size(figure: str, size: int) -> Judge:
    """Whether pinned swap is cheaper than recomputation with blocks of `size` tokens or more."""

    def judge(values: Values) -> Finding | None:
        edges = {pair[0].point.x: edge(pair) for pair in values.pairs(figure)}
        if size not in edges:
            return None
        words = ", ".join(
            f"{against_recompute(edges[x])} with {x}" for x in sorted(edges) if x >= size
        )
        tie = abs(edges[size]) < TIE
        equal = f" With {size} the two are as good as equal." if tie else ""
        return Finding(
            UNKNOWN if tie else HOLDS if edges[size] > 0 else FAILS,
            f"Swap costs {words} tokens a block.{equal}",
        )

    return judge


def rises(figure: str, *along: str, what: str, falls: bool = False) -> Judge:
    """Whether the overhead rises (or falls) from each setting to the next, for both policies."""

    def judge(values: Values) -> Finding | None:
        steps = [
            pair
            for policy in ({"overflow__name": RECOMPUTE}, PINNED)
            for pair in values.steps(figure, *along, **policy)
        ]
        right = [(b.as_timed < a.as_timed) == falls for a, b in steps if a.as_timed != b.as_timed]
        return by_count(right, f"So it is in {{}} steps {what}.")

    return judge


def _growing_edge(values: Values) -> Finding | None:
    """Whether the edge grows with the evicted tokens, and is almost 20 % in the two last cases."""
    found = {pair[0].point.x: edge(pair) for pair in values.pairs("8b")}
    if len(found) < len(EVICTED):
        return None
    edges = [found[blocks] for blocks in EVICTED]
    words = ", ".join(f"{against_recompute(found[x])} ({EVICTED[x]})" for x in EVICTED)
    right = [edges == sorted(edges), *(saved >= ALMOST_20 for saved in edges[-2:])]
    return by_count(right, f"Swap costs {words}.")


def _lengths(values: Values) -> Finding | None:
    steps = [
        pair
        for along in (ONE_LENGTH, MANY_LENGTHS)
        for pair in values.steps("9", *along)
        if pair[0].as_timed or pair[1].as_timed
    ]
    return by_count([b.as_timed > a.as_timed for a, b in steps], "So it is in {} steps of lengths.")


def _long_fixed(values: Values) -> Finding | None:
    edges = [edge(pair) for pair in values.pairs("9", workload__prompt_tokens=4096)]
    if not edges:
        return None
    return by_count(
        [saved > LITTLE for saved in edges],
        f"With 4,096 tokens of prompt and as many of output, swap costs {span(edges)} less.",
    )


def _everywhere(values: Values) -> Finding | None:
    edges = [edge(pair) for pair in values.pairs("9")]
    if not edges:
        return None
    worst = against_recompute(min(edges))
    return by_count(
        [saved > 0 for saved in edges],
        f"Swap is cheaper in {{}} cases that evict; in the worst it costs {worst}.",
    )


def _requests(values: Values) -> Finding | None:
    ratios = [b.as_timed / a.as_timed for a, b in values.steps("9", REQUESTS) if a.as_timed]
    if not ratios:
        return None
    return by_count(
        [ratio >= 2 for ratio in ratios],
        f"Twice the requests cost twice as much or more in {{}} cases; {min(ratios):.2f} times at "
        "least.",
    )


def _scarce_and_ample(values: Values) -> Finding | None:
    edges = {MEMORY_GB[pair[0].point.x]: edge(pair) for pair in values.pairs("10a")}
    if len(edges) < len(MEMORY_GB):
        return None
    words = ", ".join(f"{against_recompute(edges[gb])} at {gb}" for gb in sorted(edges))
    return by_count([edges[min(edges)] > TIE, edges[max(edges)] < -TIE], f"Swap costs {words} GB.")


def _by_model(values: Values) -> dict[str, tuple[Comparison, Comparison]]:
    found = {pair[0].point.x: pair for pair in values.pairs("10b")}
    return found if found.keys() >= SHORT.keys() else {}


def _most_and_least(values: Values) -> Finding | None:
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


def _most_evictions(values: Values) -> Finding | None:
    """By evictions under recomputation."""
    runs = {model: pair[0].run for model, pair in _by_model(values).items()}
    counts = {model: run.number("preemptions").value for model, run in runs.items() if run}
    if len(counts) < len(SHORT):
        return None
    words = join_words([f"{counts[model]:,.0f} ({SHORT[model]})" for model in (OPT, YARN, LLAMA)])
    return Finding(
        HOLDS if counts[OPT] > max(counts[YARN], counts[LLAMA]) else FAILS,
        f"Requests are evicted {words} times.",
    )


def _edge_of_opt(values: Values) -> Finding | None:
    edges = {model: edge(pair) for model, pair in _by_model(values).items()}
    if not edges:
        return None
    words = ", ".join(f"{against_recompute(edges[m])} ({SHORT[m]})" for m in (OPT, YARN, LLAMA))
    return by_count(
        [edges[OPT] > LITTLE, edges[OPT] > max(edges[YARN], edges[LLAMA])], f"Swap costs {words}."
    )


def _for_most(values: Values) -> Finding | None:
    """By majority of the experiments of each figure, beside what became of their makespans."""
    wins = {figure: [edge(pair) > 0 for pair in values.pairs(figure)] for figure in ("8b", "9")}
    if not all(wins.values()):
        return None
    words = join_words(
        [f"{sum(own)} of {len(own)} (Figure {figure})" for figure, own in wins.items()]
    )
    return by_count(
        [sum(own) > len(own) / 2 for own in wins.values()],
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
    return f" Makespans of Figure 10's experiments differ by {percent(max(shares))} at most."


def _first(values: Values, figure: str, policy: str) -> Run | None:
    runs = values.runs(figure, overflow__name=policy)
    return runs[0] if runs else None


def _one_eviction(values: Values) -> Finding | None:
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
        f"The cache is {percent(used)} full after {first['duration_s']:.2f} s; eviction at "
        f"{evicted:.1f} s, resumption at {resumed:.1f} s.",
    )


def _time_of(run: Run, event: str) -> float:
    events = run.preemptions(0)
    return float(events.loc[events["event"] == event, "time_s"].min())


def _interruptions(values: Values) -> Finding | None:
    """How long the passes of the eviction and of the resumption take, of each policy."""
    runs = {policy: _first(values, "11a", policy) for policy in (RECOMPUTE, SWAP)}
    longest = {p: (_pause(run, "preempt"), _pause(run, "resume")) for p, run in runs.items() if run}
    if len(longest) < len(runs):
        return None
    usual = max(_usual(run) for run in runs.values() if run)
    stops = {policy: [pause > 3 * usual for pause in own] for policy, own in longest.items()}
    words = join_words(
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


def _usual(run: Run) -> float:
    """What nearly all decode passes stay below."""
    steps = run.steps(0)
    return float(steps.loc[steps["phase"] == "decode", "duration_s"].quantile(0.99))


def _pause(run: Run, event: str) -> float:
    events = run.preemptions(0)
    passes = events.loc[events["event"] == event, "step"]
    steps = run.steps(0)
    return float(steps.loc[steps["step"].isin(passes), "duration_s"].max())


def _stays_full(figure: str) -> Judge:
    """Whether the cache, once full, stays within 80 and 100 % to the end."""

    def judge(values: Values) -> Finding | None:
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

    return judge


def _time_full(run: Run) -> tuple[float, tuple[float, float]]:
    """Share of passes with 80 % of the cache in use; when that ends, and when the run does."""
    steps = run.steps(0)
    end_s = steps["start_s"] + steps["duration_s"]
    full = steps["kv_blocks_used"] >= 0.8 * steps["kv_blocks_total"]
    return float(full.mean()), (float(end_s[full].max()), float(end_s.max()))


def _host_pool(figure: str, seconds: float, peak: float, later: float) -> Judge:
    """The share of the host pool in use: its peak in so many seconds, and its most after them."""

    def judge(values: Values) -> Finding | None:
        run = _first(values, figure, SWAP)
        if run is None:
            return None
        steps = run.steps(0)
        share = steps["host_blocks_used"] / steps["host_blocks_total"]
        early = steps["start_s"] < seconds
        found, rest = float(share[early].max()), float(share[~early].max())
        return by_count(
            [abs(found - peak) < 0.01, round(rest, 3) <= later],
            f"{percent(found)} at most in the first {seconds:.0f} s, then {percent(rest)}.",
        )

    return judge


CLAIMS = (
    Claim(
        ("7",),
        "VI-C",
        "An evicted request resumes with a prefill if it is recomputed, and goes on decoding if it "
        "was swapped.",
        Finding(UNKNOWN, f"{NOT_PUBLISHED} The figure is a drawing."),
        _resumptions,
    ),
    Claim(
        ("8a",),
        "VI-C",
        "The block size has very little effect on the cost of recomputation.",
        Finding(HOLDS, "Between block sizes recomputation differs by 5.0 % at most."),
        recompute_by_block_size("8a"),
    ),
    Claim(
        ("8a",),
        "VI-C",
        "Small blocks make swap much dearer, to pinned and to pageable memory.",
        Finding(
            HOLDS,
            "10 of 10 doublings of the block make swap cheaper; blocks of 2 cost 4.5 times those "
            "of 64 tokens (pinned) and 3.2 times (pageable).",
        ),
        swap_by_block_size("8a"),
    ),
    Claim(
        ("8a",),
        "VI-C",
        "Swap to pageable memory is cheaper than recomputation at no block size.",
        Finding(HOLDS, "Swap to pageable memory costs 2.1 to 7.2 times as much."),
        _pageable,
    ),
    Claim(
        ("8a",),
        "VI-C",
        "Swap to pinned memory is cheaper than recomputation already with blocks of 16 tokens.",
        Finding(
            HOLDS,
            "Swap costs 1.1 % less with 16 tokens a block, in means of three runs, 19 % less with "
            "32 and 31 % less with 64.",
        ),
        from_block_size("8a", 16),
    ),
    Claim(
        ("8b",),
        "VI-C",
        "Both policies cost more the more tokens are evicted.",
        Finding(HOLDS, "So it is in 8 of 8 steps of evicted tokens."),
        rises("8b", BLOCKS, "workload.path", what="of evicted tokens"),
    ),
    Claim(
        ("8b",),
        "VI-C",
        "The gap to recomputation grows, and swap is clearly cheaper (by almost 20 %), above all "
        "with 8K and 16K evicted tokens.",
        Finding(
            IN_PART,
            "Swap costs 18 % less with 16K, but 8.1 % less with 8K and 1.7 % less with 4K; with 1K "
            "and 2K it costs 2.2 and 1.3 % more.",
        ),
        _growing_edge,
    ),
    Claim(
        ("9",),
        "VI-C",
        "Both policies cost more the longer the sequences, of one length or of many.",
        Finding(HOLDS, "So it is in 24 of 24 steps of lengths."),
        _lengths,
    ),
    Claim(
        ("9",),
        "VI-C",
        "Swap is noticeably cheaper with very long sequences of one length.",
        Finding(
            HOLDS, "With 4,096 tokens of prompt and as many of output, swap costs 21 to 28 % less."
        ),
        _long_fixed,
    ),
    Claim(
        ("9",),
        "VI-C",
        "With sequences of many lengths swap saves less, but noticeably so in all configurations.",
        Finding(
            IN_PART,
            "Swap is cheaper in 13 of 16 cases that evict; in the worst it costs 20 % more. All "
            "three others are of many lengths.",
        ),
        _everywhere,
    ),
    Claim(
        ("9",),
        "VI-C",
        "Twice the requests cause at least twice the overhead.",
        Finding(
            IN_PART,
            "Twice the requests cost twice as much or more in 16 of 20 cases; 1.77 times at least.",
        ),
        _requests,
    ),
    Claim(
        ("10a",),
        "VI-C",
        "Both policies cost less the more memory the cache has.",
        Finding(
            IN_PART, "So it is in 9 of 10 steps of memory; swap costs more at 22 than at 18 GB."
        ),
        rises("10a", BLOCKS, what="of memory", falls=True),
    ),
    Claim(
        ("10a",),
        "VI-C",
        "Swap is cheaper where memory is scarce, recomputation where it is ample.",
        Finding(
            HOLDS,
            "Swap costs 17 % less at 6 GB, and more from 18 GB on (15 % at 24). With requests of "
            "ShareGPT, in the same notebook and not in the paper, recomputation is not cheaper at "
            "18 or 24 GB.",
        ),
        _scarce_and_ample,
    ),
    Claim(
        ("10b",),
        "VI-C",
        "OPT-13B has the highest overhead (10.4 s recomputed, 7.2 s swapped), Llama-3.1-8B the "
        "lowest (0.38 and 0.34 s).",
        Finding(
            HOLDS,
            "With recomputation and with swap: OPT-13B 10.4 and 7.27 s, Yarn-Llama-2-7B 4.36 and "
            "4.14 s, Llama-3.1-8B 0.387 and 0.342 s.",
        ),
        _most_and_least,
    ),
    Claim(
        ("10b",),
        "VI-C",
        "OPT-13B also evicts more often than the other two models.",
        Finding(
            UNKNOWN,
            "No counts are published. In the published series 85 passes resume requests with "
            "OPT-13B, under swap, and Llama-3.1-8B has 8 evictions.",
        ),
        _most_evictions,
    ),
    Claim(
        ("10b",),
        "VI-C",
        "Swap has a clear advantage with OPT-13B, and a far smaller one with the other two models.",
        Finding(
            HOLDS,
            "Swap costs 30 % less (OPT-13B), 5.0 % (Yarn-Llama-2-7B) and 11 % (Llama-3.1-8B). But "
            "swap-out was timed without synchronisation, about half too short: by the durations of "
            "passes swap saves 18 % with OPT-13B and costs more with Yarn-Llama-2-7B.",
        ),
        _edge_of_opt,
    ),
    Claim(
        ("8b", "9"),
        "VI-C, key observations",
        "For most of the other variables (evicted tokens, length of sequences, number of requests) "
        "swap keeps its advantage.",
        Finding(
            HOLDS,
            "Swap is cheaper in 3 of 5 (Figure 8b) and 13 of 16 (Figure 9). The measure counts "
            "whole passes, of which most work was due anyway; makespans barely differ: 119.78 and "
            "119.81 s with 6 GB.",
        ),
        _for_most,
    ),
    Claim(
        ("11a",),
        "VI-C, use of the cache",
        "With 16K evicted tokens the cache is 95 % full after about 1.2 s; eviction comes at 15 s, "
        "resumption at 24.5 s.",
        Finding(
            HOLDS,
            "95.1 % after 1.26 s; 15.4 and 24.8 s with recomputation, 15.9 and 25.2 s with swap.",
        ),
        _one_eviction,
    ),
    Claim(
        ("11a",),
        "VI-C, use of the cache",
        "Swap interrupts the other requests at eviction and at resumption, recomputation only at "
        "resumption.",
        Finding(
            HOLDS,
            "With swap the passes of the eviction and of the resumption take 471 and 545 ms, with "
            "recomputation only that of the resumption is long, 1,200 ms; others take 15 to 36 ms.",
        ),
        _interruptions,
    ),
    Claim(
        ("11b",),
        "VI-C, use of the cache",
        "With 6 GB the cache is almost full from the start, and stays between 80 and 100 % to the "
        "end with both policies.",
        Finding(
            IN_PART,
            "It is 80 % full or more in 94 % of the passes, for the last time after 114 of "
            "120 s with either policy.",
        ),
        _stays_full("11b"),
    ),
    Claim(
        ("11b",),
        "VI-C, use of the cache",
        "Swap then fills 6 % of the host pool in the first 20 s, and 0 to 2 % later.",
        Finding(IN_PART, "6.8 % at most in the first 20 s, then 2.2 %."),
        _host_pool("11b", 20, 0.06, 0.02),
    ),
    Claim(
        ("11c",),
        "VI-C, use of the cache",
        "With OPT-13B swap fills 10 % of the host pool in the first 31 s, and 0 to 4 % later.",
        Finding(IN_PART, "10.2 % at most in the first 31 s, then 4.9 %."),
        _host_pool("11c", 31, 0.10, 0.04),
    ),
)
