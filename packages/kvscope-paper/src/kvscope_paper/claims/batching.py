"""Claims on throughput under different batching strategies: Figures 3 to 5."""

from collections.abc import Iterator
from statistics import median
from typing import Any

import pandas as pd

from kvscope.api.wording import wording
from kvscope_paper.claims.judging import (
    FAILS,
    HOLDS,
    LITTLE,
    SHARP,
    TIE,
    Finding,
    by_count,
    span,
    within,
)
from kvscope_paper.claims.values import Values
from kvscope_paper.comparison import Comparison

YARN, LLAMA, OPT = "yarn-llama-2-7b", "llama-3.1-8b", "opt-13b"
SHORT = {YARN: "Yarn-Llama-2-7B", LLAMA: "Llama-3.1-8B", OPT: "OPT-13B"}
WINDOWS = {YARN: 8192, LLAMA: 16384, OPT: 2048}  # of Figure 3a
RATE, PREFILL_RATE = "throughput_tokens_per_s", "prefill_throughput_tokens_per_s"
ORDERS = ("sharegpt-order-1.csv", "sharegpt-order-3.csv")
# The plotted workload of Figure 4b.
MIX: dict[str, Any] = {"workload__min_tokens": 128, "workload__max_tokens": 2048}
REQUESTS, CHUNK = "workload.num_requests", "batching.chunk_tokens"
POLICIES_OF_5: dict[str, dict[str, Any]] = {
    "chunks of 4,096": {"batching__name": "chunked", "batching__chunk_tokens": 4096},
    "prefill first": {"batching__name": "prefill_first"},
    "mixed": {"batching__name": "mixed"},
}


def _tokens(comparison: Comparison) -> int:
    """Tokens of a pass of Figure 3a: each request's prompt and the token that it gives."""
    return int(comparison.point.x) * (int(comparison.point.settings["workload.prompt_tokens"]) + 1)


def _of_window(values: Values, model: str, share: float) -> Iterator[float]:
    """Throughput with that share of the window over that with all of it, for each prompt length."""
    for group in values.series("3a", REQUESTS, model__name=model):
        rates = {_tokens(comparison): comparison.as_timed for comparison in group}
        part, whole = int(WINDOWS[model] * share), WINDOWS[model]
        if part in rates and whole in rates:
            yield rates[part] / rates[whole]


def full_is_fastest(values: Values) -> Finding | None:
    right = []
    for group in values.series("3a", REQUESTS, model__name=YARN):
        if len(group) > 1 and _tokens(group[-1]) == WINDOWS[YARN]:
            right.append(group[-1].as_timed == max(comparison.as_timed for comparison in group))
    return by_count(right, "So it is for {} lengths of prompts.")


def ways_to_fill(values: Values) -> Finding | None:
    full = [
        comparison
        for comparison in values.of("3a", model__name=YARN)
        if _tokens(comparison) == WINDOWS[YARN]
    ]
    if len(full) < 2:
        return None
    slowest, fastest = (
        pick(full, key=lambda comparison: comparison.as_timed) for pick in (min, max)
    )
    near = [within(1 - comparison.as_timed / fastest.as_timed, LITTLE) for comparison in full]
    return by_count(
        near,
        f"{{}} ways to fill it are within {wording.percent(LITTLE)} of the fastest; the slowest "
        f"(prompts: {slowest.point.x}) is "
        f"{wording.percent(1 - slowest.as_timed / fastest.as_timed)} below.",
    )


def half_full(values: Values) -> Finding | None:
    shares = list(_of_window(values, YARN, 1 / 2))
    if not shares:
        return None
    near = [within(1 - share, LITTLE) for share in shares]
    return by_count(
        near,
        f"Half a window reaches {span(shares)} of the throughput of a full one; with {{}} lengths "
        f"of prompts it loses {wording.percent(LITTLE)} at most.",
    )


def tokens_decide(values: Values) -> Finding | None:
    """Finding by rank correlation, over both orders of the prompts."""
    group = [comparison for comparison in values.of("3b", PREFILL_RATE) if comparison.run]
    if len(group) < 3:
        return None
    rates = [comparison.as_timed for comparison in group]
    by_tokens = _rank_correlation([_prompt_tokens(comparison) for comparison in group], rates)
    by_requests = _rank_correlation([float(comparison.point.x) for comparison in group], rates)
    return Finding(
        HOLDS if by_tokens > by_requests else FAILS,
        f"Rank correlation of throughput with tokens {by_tokens:.2f}, with requests "
        f"{by_requests:.2f}, over both orders.",
    )


def _rank_correlation(first: list[float], second: list[float]) -> float:

    return float(pd.Series(first).rank().corr(pd.Series(second).rank()))


def _prompt_tokens(comparison: Comparison) -> float:
    """Prompt tokens of an experiment; 0 without its run."""
    return (
        0.0
        if comparison.run is None
        else float(comparison.run.records.requests["prompt_tokens"].sum())
    )


def quarter_window(values: Values) -> Finding | None:
    quarter = WINDOWS[YARN] / 4
    shares = []
    for path in ORDERS:
        group = [
            comparison
            for comparison in values.of("3b", PREFILL_RATE, workload__path=path)
            if comparison.run
        ]
        group.sort(key=_prompt_tokens)
        short = [comparison for comparison in group if _prompt_tokens(comparison) <= quarter]
        if short and _prompt_tokens(group[-1]) > quarter:
            shares.append(short[-1].as_timed / max(comparison.as_timed for comparison in group))
    if not shares:
        return None
    enough = [share >= 0.75 for share in shares]
    return by_count(enough, f"A quarter of the window at most reaches {span(shares)} of the peak.")


def other_models(values: Values) -> Finding | None:
    shares = {model: list(_of_window(values, model, 1 / 4)) for model in (OPT, LLAMA)}
    if not all(shares.values()):
        return None
    enough = [median(group) >= 0.75 for group in shares.values()]
    words = (f"{span(group)} with {SHORT[model]}" for model, group in shares.items())
    return by_count(
        enough,
        f"Prompts of one length, in a quarter of the window, reach {' and '.join(words)}.",
    )


def decode_growth(values: Values) -> Finding | None:
    series = [group for group in values.series("3c", REQUESTS) if len(group) > 2]
    first, last = ([group[i + 1].as_timed / group[i].as_timed for group in series] for i in (0, -2))
    if not series:
        return None
    return by_count(
        [a > b for a, b in zip(first, last, strict=True)],
        f"Twice the requests give {_times(first)} the throughput at first, {_times(last)} at last.",
    )


def _times(ratios: list[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f} times"


def _peaks(values: Values, figure: str) -> dict[str, Comparison]:
    by_model = {model: values.of(figure, model__name=model) for model in SHORT}
    return {
        model: max(group, key=lambda comparison: comparison.as_timed)
        for model, group in by_model.items()
        if group
    }


def decode_peak(values: Values) -> Finding | None:
    peaks = _peaks(values, "3c")
    if len(peaks) < len(SHORT):
        return None
    opt, others = peaks[OPT].as_timed, [peaks[model].as_timed for model in (YARN, LLAMA)]
    return by_count(
        [within(opt / 4000 - 1, LITTLE), min(others) > (1 + SHARP) * opt],
        f"OPT-13B reaches {opt:,.0f} tokens/s with {peaks[OPT].point.x} requests, the others "
        f"{min(others):,.0f} and {max(others):,.0f}.",
    )


def decode_below_prefill(values: Values) -> Finding | None:
    prefill, decode = _peaks(values, "3a"), _peaks(values, "3c")
    ratios = [
        prefill[model].as_timed / decode[model].as_timed for model in prefill if model in decode
    ]
    if not ratios:
        return None
    return by_count(
        [ratio > 1 + SHARP for ratio in ratios],
        f"The fastest prefill has {_times(ratios)} the throughput of the fastest decode.",
    )


def _whole_prompt(values: Values) -> Comparison | None:
    whole = values.of("4a", RATE, batching__name="prefill_first", workload__prompt_tokens=8191)
    return whole[0] if whole else None


def smaller_chunks(values: Values) -> Finding | None:
    whole = _whole_prompt(values)
    steps = values.steps("4a", CHUNK, metric=RATE, workload__prompt_tokens=8191)
    if whole is None or not steps:
        return None
    smallest = steps[0][0]
    return by_count(
        [a.as_timed < b.as_timed for a, b in steps],
        f"{{}} halvings of the chunk cost throughput; chunks of {smallest.point.x} tokens reach "
        f"{wording.percent(smallest.as_timed / whole.as_timed)} of the whole prompt's.",
    )


def one_chunk(values: Values) -> Finding | None:
    whole = _whole_prompt(values)
    chunk = values.of("4a", RATE, batching__chunk_tokens=8192, workload__prompt_tokens=8191)
    if whole is None or not chunk:
        return None
    lost = 1 - chunk[0].as_timed / whole.as_timed
    return Finding(
        HOLDS if lost > TIE else FAILS, f"One chunk of 8,192 tokens loses {wording.percent(lost)}."
    )


def context_window(values: Values) -> Finding | None:
    series = values.series("4b", "engine.max_model_len", metric=RATE, **MIX)
    rates = [[comparison.as_timed for comparison in group] for group in series if len(group) > 1]
    if not rates:
        return None
    spreads = [max(group) / min(group) - 1 for group in rates]
    return by_count(
        [within(spread, LITTLE) for spread in spreads],
        f"For {{}} ways of batching, windows differ by less than {wording.percent(LITTLE)}; by "
        f"{wording.percent(max(spreads))} at most.",
    )


def _losses(values: Values, **batching: Any) -> dict[tuple[int, int], float]:
    """Share of throughput that a batching loses against prefill first, by window (and chunk)."""
    plain = values.of("4b", RATE, batching__name="prefill_first", **MIX)
    base = {comparison.point.x: comparison.as_timed for comparison in plain}
    batched = values.of("4b", RATE, **batching, **MIX)
    return {
        (comparison.point.x, comparison.point.settings.get(CHUNK, 0)): 1
        - comparison.as_timed / base[comparison.point.x]
        for comparison in batched
        if comparison.point.x in base
    }


def mixed(values: Values) -> Finding | None:
    gains = [0 - lost for lost in _losses(values, batching__name="mixed").values()]
    if not gains:
        return None
    return by_count(
        [gain >= 0 and within(gain, LITTLE) for gain in gains],
        f"Mixed batching has {span(gains)} more; no less with {{}} windows.",
    )


def chunking(values: Values) -> Finding | None:
    losses = list(_losses(values, batching__name="chunked").values())
    if not losses:
        return None
    return by_count(
        [lost >= SHARP for lost in losses], f"Chunking costs {span(losses)} of the throughput."
    )


def kernel_or_passes(values: Values) -> Finding | None:
    """Chunks of 4,096 tokens need no more passes: what they lose is the kernel's."""
    large, small = (
        _losses(values, batching__name="chunked", batching__chunk_tokens=chunk).values()
        for chunk in (4096, 512)
    )
    if not large or not small:
        return None
    kernel = median(large)
    passes = median(small) - kernel
    return by_count(
        [passes > TIE, kernel > passes],
        f"Chunks of 4,096 tokens, which need no more passes, cost {span([kernel])}; chunks of 512 "
        f"cost another {span([passes])}.",
    )


def _of_models(values: Values, **batching: Any) -> dict[str, float]:
    return {
        comparison.point.x: comparison.as_timed for comparison in values.of("4c", RATE, **batching)
    }


def opt_slower(values: Values) -> Finding | None:
    rates = [_of_models(values, batching__name=name) for name in ("prefill_first", "mixed")]
    ratios = [group[YARN] / group[OPT] for group in rates if {YARN, OPT} <= group.keys()]
    if not ratios:
        return None
    words = " and ".join(f"{ratio:.2f}" for ratio in ratios)
    return by_count(
        [within(ratio / 1.7 - 1, LITTLE) for ratio in ratios],
        f"OPT-13B is {words} times slower, prefill first and mixed.",
    )


def hurts_fast_passes(values: Values) -> Finding | None:
    """Finding on whether the model with faster passes loses more by chunks of 512 tokens."""
    plain = _of_models(values, batching__name="prefill_first")
    chunked = _of_models(values, batching__chunk_tokens=512)
    losses = {model: 1 - chunked[model] / plain[model] for model in plain if model in chunked}
    if not {YARN, OPT} <= losses.keys():
        return None
    return by_count(
        [losses[YARN] >= SHARP, losses[YARN] > losses[OPT]],
        f"Chunks of 512 tokens cost Yarn-Llama-2-7B {span([losses[YARN]])} of its throughput, "
        f"OPT-13B, whose passes are slower, {span([losses[OPT]])}.",
    )


def models_in_chunks(values: Values) -> Finding | None:
    rates = [
        group
        for chunk in (512, 1024, 2048)
        if len(group := _of_models(values, batching__chunk_tokens=chunk)) == len(SHORT)
    ]
    if not rates:
        return None
    spreads = [1 - min(group.values()) / max(group.values()) for group in rates]
    words = ", ".join(
        f"{SHORT[model]} {min(group[model] for group in rates):,.0f} to "
        f"{max(group[model] for group in rates):,.0f}"
        for model in (OPT, LLAMA, YARN)
    )
    return by_count([within(spread, LITTLE) for spread in spreads], f"{words} tokens/s.")


def _passes_of_5(values: Values, **batching: Any) -> list[float]:
    group = sorted(values.of("5", **batching), key=lambda comparison: int(comparison.point.x))
    return [comparison.as_timed for comparison in group]


def full_at_first(values: Values) -> Finding | None:
    shares = {
        name: [tokens / 4096 for tokens in _passes_of_5(values, **batching)[:3]]
        for name, batching in POLICIES_OF_5.items()
    }
    if not all(shares.values()):
        return None
    words = ", ".join(f"{span(group)} ({name})" for name, group in shares.items())
    return by_count(
        [min(group) >= 1 - LITTLE / 2 for group in shares.values()],
        f"Of the first three passes' windows are filled: {words}.",
    )


def drops_later(values: Values) -> Finding | None:
    series: dict[tuple[Any, Any], list[Comparison]] = {}
    for comparison in values.of("5"):
        key = (
            comparison.point.settings.get("batching.name"),
            comparison.point.settings.get(CHUNK, 0),
        )
        series.setdefault(key, []).append(comparison)
    last = []
    for group in series.values():
        group.sort(key=lambda comparison: int(comparison.point.x))
        last.append(group[-1].as_timed / group[0].as_timed)
    if not last:
        return None
    return by_count(
        [share < LITTLE for share in last],
        f"{{}} strategies: their last pass shown has less than {wording.percent(LITTLE)} of the "
        "tokens of their first.",
    )
