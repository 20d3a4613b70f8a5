"""The paper's key observations: what it says, what its published data support, what ours show."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from kvscope.report.paper.comparison import AGREES, Comparison
from kvscope.report.paper.values import SWAP, Values
from kvscope.report.words import percent

WINDOW_TOKENS = 8192  # of Figure 3b


@dataclass(frozen=True)
class Claim:
    """One observation; `ours` makes a sentence of our values, empty if they are not there."""

    figures: str
    paper: str
    published: str
    ours: Callable[[Values], str]


def _window_fill(values: Values) -> str:
    """Prompts of any length that fill a context window of 8,192 tokens."""
    full = [
        one.as_timed
        for one in values.of("3a", model__name="yarn-llama-2-7b")
        if int(one.point.x) * (int(one.point.settings["workload.prompt_tokens"]) + 1) == 8192
    ]
    if len(full) < 2:
        return ""
    return f"The fastest filling has {percent(max(full) / min(full) - 1)} more throughput."


def _quarter_window(values: Values) -> str:
    shares = []
    for path in ("sharegpt-order-1.csv", "sharegpt-order-3.csv"):
        own = sorted(values.of("3b", workload__path=path), key=lambda one: int(one.point.x))
        quarter = [one for one in own if _prompt_tokens(one) <= WINDOW_TOKENS / 4]
        if quarter and _prompt_tokens(own[-1]) > WINDOW_TOKENS / 4:
            shares.append(quarter[-1].as_timed / max(one.as_timed for one in own))
    if not shares:
        return ""
    return f"A quarter of the window reaches {_range(shares)} of the peak."


def _prompt_tokens(one: Comparison) -> float:
    """Tokens of a study's prefill; without its run, those of the published requests."""
    return 0.0 if one.run is None else float(one.run.records.requests["prompt_tokens"].sum())


def _decode_peak(values: Values) -> str:
    own = values.of("3c", model__name="opt-13b")
    if not own:
        return ""
    peak = max(own, key=lambda one: one.as_timed)
    return f"OPT-13B peaks at {peak.as_timed:,.0f} tokens/s, with {peak.point.x} requests."


def _one_prompt(values: Values) -> str:
    prompt: dict[str, Any] = {"workload__prompt_tokens": 8191}
    whole = values.of("4a", batching__name="prefill_first", **prompt)
    chunked = values.of("4a", batching__name="chunked", batching__chunk_tokens=8192, **prompt)
    if not whole or not chunked:
        return ""
    lost = 1 - chunked[0].as_timed / whole[0].as_timed
    return f"One chunk of 8,192 tokens loses {percent(lost)}."


def _models(values: Values) -> str:
    metric = "throughput_tokens_per_s"
    rates = {
        name: [
            one.as_timed
            for one in values.of("4c", metric, model__name=name)
            if "prefill_first" in one.point.settings.values()
        ]
        for name in ("opt-13b", "yarn-llama-2-7b")
    }
    if not all(rates.values()):
        return ""
    ratio = rates["yarn-llama-2-7b"][0] / rates["opt-13b"][0]
    return f"OPT-13B is {ratio:.2f} times slower."


def _equal(figure: str, what: str) -> Callable[[Values], str]:
    def sentence(values: Values) -> str:
        own = values.of(figure)
        equal = sum(one.verdict == AGREES for one in own)
        return f"{equal} of {len(own)} passes have the published {what}." if own else ""

    return sentence


def _decode_step(values: Values) -> str:
    runs = [one.run for one in values.of("6b") if one.run]
    if not runs:
        return ""
    steps = runs[0].steps(0)
    decode_s = float(steps.loc[steps["phase"] == "decode", "duration_s"].median())
    return f"{_equal('6b', 'reads')(values)} A decode pass takes {1e3 * decode_s:.1f} ms."


def _host_pool(figure: str, seconds: float) -> Callable[[Values], str]:
    """The share of the host pool in use, until so many seconds and later."""

    def sentence(values: Values) -> str:
        runs = [one.run for one in values.of(figure, overflow__name=SWAP) if one.run]
        if not runs:
            return ""
        steps = runs[0].steps(0)
        share = steps["host_blocks_used"] / steps["host_blocks_total"]
        early = steps["start_s"] < seconds
        most = percent(float(share[early].max()))
        return f"{most} at most in the first {seconds:.0f} s, then {percent(share[~early].max())}."

    return sentence


def _one_eviction(values: Values) -> str:
    runs = [one.run for one in values.of("11a") if one.run]
    if not runs:
        return ""
    steps, events = runs[0].steps(0), runs[0].preemptions(0)
    first = steps.iloc[0]
    used = first["kv_blocks_used"] / first["kv_blocks_total"]
    evicted, resumed = (
        float(events.loc[events["event"] == event, "time_s"].min())
        for event in ("preempt", "resume")
    )
    return (
        f"The cache is {percent(used)} full after {first['duration_s']:.2f} s; eviction at "
        f"{evicted:.1f} s, resumption at {resumed:.1f} s."
    )


def _range(shares: list[float]) -> str:
    least, most = percent(min(shares)), percent(max(shares))
    return least if least == most else f"{least} to {most}"


def _chunking(values: Values) -> str:
    metric = "throughput_tokens_per_s"
    plain = values.of("4b", metric, batching__name="prefill_first", workload__min_tokens=128)
    base = {one.point.x: one.as_timed for one in plain}
    losses = [
        1 - one.as_timed / base[one.point.x]
        for one in values.of("4b", metric, batching__name="chunked", workload__min_tokens=128)
        if one.point.x in base
    ]
    if not losses:
        return ""
    least, most = percent(min(losses)), percent(max(losses))
    return f"Chunking costs between {least} and {most} of the throughput."


def _block_size(values: Values) -> str:
    pairs = sorted(values.pairs("8a"), key=lambda pair: pair[0].point.x)
    wins = [swap.point.x for recompute, swap in pairs if swap.as_timed < recompute.as_timed]
    if not pairs:
        return ""
    if not wins:
        return "Recomputation is cheaper at every block size."
    return f"Swap is cheaper from blocks of {min(wins)} tokens on."


def _evicted(values: Values) -> str:
    edges = {
        recompute.point.x: 1 - swap.as_timed / recompute.as_timed
        for recompute, swap in values.pairs("8b")
    }
    if not {562, 1062} <= edges.keys():
        return ""
    return f"Swap saves {percent(edges[562])} at 8K and {percent(edges[1062])} at 16K."


def _requests(values: Values) -> str:
    growth = []
    for one in values.of("9"):
        twice = values.of(
            "9",
            **{
                key.replace(".", "__"): value
                for key, value in one.point.settings.items()
                if key != one.point.table.x
            },
        )
        growth += [
            other.as_timed / one.as_timed
            for other in twice
            if other.point.x == 2 * one.point.x and one.as_timed > 0
        ]
    if not growth:
        return ""
    least = sum(ratio >= 2 for ratio in growth)
    return f"In {least} of {len(growth)} cases twice the requests cost twice as much or more."


def _winners(figure: str) -> Callable[[Values], str]:
    def sentence(values: Values) -> str:
        pairs = values.pairs(figure)
        apart = [
            (a, b) for a, b in pairs if abs(a.point.value - b.point.value) > 0.05 * b.point.value
        ]
        if not apart:
            return ""
        same = sum((a.as_timed > b.as_timed) == (a.point.value > b.point.value) for a, b in apart)
        off = median(abs(one.ratio - 1) for pair in pairs for one in pair)
        return (
            f"The cheaper policy is the published one in {same} of {len(apart)} cases that differ "
            f"by more than 5 %; the median error is {percent(off)}."
        )

    return sentence


def _memory(values: Values) -> str:
    pairs = sorted(values.pairs("10a"), key=lambda pair: pair[0].point.x)
    wins = [b.point.x for a, b in pairs if a.as_timed < b.as_timed]
    if not pairs:
        return ""
    where = f"from {min(wins):,} blocks on" if wins else "nowhere"
    return f"Recomputation is cheaper {where}. {_winners('10a')(values)}"


def _makespans(values: Values) -> str:
    shares = []
    for a, b in (*values.pairs("10a"), *values.pairs("10b")):
        if a.run and b.run:
            times = [one.run.number("makespan_s").value for one in (a, b) if one.run]
            shares.append(abs(times[0] - times[1]) / max(times))
    if not shares:
        return ""
    return f"The makespans of the two policies differ by {percent(max(shares))} at most."


CLAIMS = (
    Claim(
        "3a",
        "How prompts fill the context window makes a minimal difference.",
        "Full windows of 8,192 tokens have 13.9 to 16.7 thousand tokens/s, 20 % apart.",
        _window_fill,
    ),
    Claim(
        "3b",
        "A quarter of the context window reaches three quarters of the peak throughput.",
        "Supported: 80 % with 1,815 tokens of prompts in the first order.",
        _quarter_window,
    ),
    Claim(
        "3c",
        "Decode of OPT-13B peaks at 4,000 tokens/s.",
        "4,133 with 256 requests, but 4,798 with 512.",
        _decode_peak,
    ),
    Claim(
        "4a",
        "One prompt is slower in chunks, even in one chunk of its whole length.",
        "Supported: 8,192 tokens in one chunk lose 19 %. No stall is in these runs.",
        _one_prompt,
    ),
    Claim(
        "4c",
        "OPT-13B is 1.7 times slower than Yarn-Llama-2-7B with continuous batching.",
        "Supported: 1.78 times.",
        _models,
    ),
    Claim(
        "5",
        "Chunked prefill fills the context window, the other policies leave a part of it empty.",
        "Supported: 119 of 120 plotted points are those of the logs.",
        _equal("5", "tokens"),
    ),
    Claim(
        "6",
        "All reads of K and V are recorded; a decode pass takes about 25 ms.",
        "15.8 % of V reads were lost; their durations are too long by a factor of 5 to 7. 25 ms is "
        "with recording; without, passes of four requests take 16 ms.",
        _decode_step,
    ),
    Claim(
        "4b, 4c",
        "Chunked prefill lowers the throughput sharply: bars 38 to 57 % below the others.",
        "51 of 54 logs of chunked runs with several requests hold one or two stalls of the host of "
        "about 1.55 s, the others none. Without them, chunking costs 2 to 7 % (requests of 128 to "
        "2,048 tokens).",
        _chunking,
    ),
    Claim(
        "8a",
        "Small blocks make swapping expensive; from 16 tokens on, swap beats recomputation.",
        "Supported, by 1.1 % at 16 tokens. Pageable memory costs more than recomputation at every "
        "block size.",
        _block_size,
    ),
    Claim(
        "8b",
        "Swap is almost 20 % cheaper, especially with 8K and 16K evicted tokens.",
        "18.4 % at 16K, but 8.1 % at 8K, and less than nothing at 1K and 2K.",
        _evicted,
    ),
    Claim(
        "9",
        "Twice the requests cause at least twice the overhead.",
        "Not in 4 of 20 cases (1.77 to 1.97 times).",
        _requests,
    ),
    Claim(
        "9",
        "Swap is cheaper in all configurations.",
        "Not in 3 of 16 cases that evict.",
        _winners("9"),
    ),
    Claim(
        "10a",
        "With a large cache recomputation becomes cheaper than swap.",
        "Supported by the Zipf workload from 18 GB on; a ShareGPT series in the same notebook, not "
        "published, shows the opposite.",
        _memory,
    ),
    Claim(
        "10b",
        "OPT-13B suffers most, Llama-3.1-8B next to nothing.",
        "Supported. The swap-out was timed without synchronisation, by about half too short.",
        _winners("10b"),
    ),
    Claim(
        "11a",
        "The cache is 95 % full after 1.2 s; eviction at 15 s, resumption at 24.5 s.",
        "Supported: 95.1 % at 1.26 s, 15.4 and 24.8 s with recomputation.",
        _one_eviction,
    ),
    Claim(
        "11b",
        "Swap fills 6 % of the host pool in the first 20 s, and at most 2 % later.",
        "Supported: 6.8 %, then 2.2 %.",
        _host_pool("11b", 20),
    ),
    Claim(
        "11c",
        "With OPT-13B, swap fills 10 % of the host pool in the first 31 s, and at most 4 % later.",
        "Supported: 10.2 %, then 4.9 %.",
        _host_pool("11c", 31),
    ),
    Claim(
        "10, 11",
        "Swap's lower overhead makes it the better policy.",
        "The published makespans barely differ: 119.78 and 119.81 s with 6 GB. The measure counts "
        "whole passes, of which most work was due anyway.",
        _makespans,
    ),
)


def judged(found: Iterable[Comparison]) -> list[dict[str, Any]]:
    """Every claim with what our values show, by device."""
    by_device: dict[str, list[Comparison]] = {}
    for one in found:
        by_device.setdefault(one.device, []).append(one)
    values = {device: Values(own) for device, own in by_device.items()}
    return [
        {
            "figures": claim.figures,
            "paper": claim.paper,
            "published": claim.published,
            "ours": {device: claim.ours(own) or "Not run." for device, own in values.items()},
        }
        for claim in CLAIMS
    ]
