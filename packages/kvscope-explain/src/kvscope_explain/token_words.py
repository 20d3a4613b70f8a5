"""Sentences on where the tokens of requests came from, and why passes computed them."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from kvscope.api.words import quantities as words
from kvscope_explain import tokens
from kvscope_explain.tokens import CAUSES, Account, Accounts, Eviction, Kept

REMEDIES = {
    tokens.OFF: "cache.prefix_caching=true (vLLM: --enable-prefix-caching) finds its full blocks",
    tokens.SHORT: "a smaller cache.block_size (vLLM: --block-size) finds more, unless the size "
    "of a state sets it",
    tokens.UNDER_WAY: "a request that is sent after the first token of the earlier one finds it",
    tokens.STATE: "vLLM's --mamba-cache-mode all, if the model has it, keeps that of every block",
    tokens.SALTED: "one cache salt, or adapter, for the requests that may share",
    tokens.LAST: "a smaller cache.block_size (vLLM: --block-size) computes less with the newest "
    "token",
    tokens.PREEMPTED: "more blocks (cache.blocks; vLLM: --gpu-memory-utilization), fewer requests "
    "at once (engine.max_num_seqs; vLLM: --max-num-seqs), or overflow=swap",
}
"""Settings that end a cause; those of evictions depend on the reuse distance."""


MAMBA = "Mamba"
FOUND = "found in the prefix cache"
LEAST_SHARE = 0.01  # of an account's tokens, for which a remedy is named


def facts(accounts: Accounts, request_id: str | None = None) -> dict[str, Any]:
    """The account of a request, or of all, as a JSON object."""
    account = accounts.of(request_id)
    return {
        "asked": account.asked,
        "found": account.found,
        "loaded": account.loaded,
        "copied": account.copied,
        "unserved": account.unserved,
        "computed": {cause: account.computed[cause] for cause in CAUSES},
        "evicted": [
            {
                "tokens": count,
                "reuse_distance_blocks": eviction.distance_blocks,
                "held_blocks": eviction.held_blocks,
            }
            for eviction, count in sorted(account.evicted.items(), key=lambda item: item[0][0])
        ],
        "not_kept": [{"tokens": count, **kept._asdict()} for kept, count in account.kept.items()],
        "pool_blocks": accounts.pool_blocks,
        "host_blocks": accounts.host_blocks,
        "block_tokens": accounts.block_tokens,
        "sentences": [*lines(accounts, request_id)],
    }


def lines(accounts: Accounts, request_id: str | None = None) -> Iterator[str]:
    """The account of a request, or of all: the tokens of each cause, and what ends it."""
    account = accounts.of(request_id)
    yield heading(account)
    for count, line in sentences(accounts, request_id):
        yield f"{count / account.tokens:8.1%}  {count:>11,}  {line}"
    if (stored := accounts.hits_stored(request_id)) != account.found:
        yield (
            f"The run's tables say that {stored:,} were found; its decisions contradict that "
            "(kvscope check)"
        )
    if request_id is None:
        yield from remedies(accounts, account)


def remedies(accounts: Accounts, account: Account) -> Iterator[str]:
    """The settings that end causes of an account, in the order of their tokens; not of few."""
    for cause, count in account.causes:
        if count < LEAST_SHARE * account.tokens:
            return
        if cause == tokens.EVICTED and account.evicted:
            yield f"Against {cause!r}: {_larger(accounts, account)}"
        elif cause in REMEDIES:
            yield f"Against {cause!r}: {REMEDIES[cause]}"


def heading(account: Account) -> str:
    """'Tokens: of 12,288 asked for, 8,192 were found in the prefix cache and 4,096 computed; …'."""
    sources = [
        (account.found, FOUND),
        (account.loaded, "loaded from the host"),
        (account.copied, "copied back from the host"),
        (account.tokens - account.computed[tokens.OUTPUT], "computed"),
        (account.unserved, "not computed before a preemption or an abort"),
    ]
    parts = [f"{count:,} {source}" for count, source in sources if count or source == FOUND]
    return (
        f"Tokens: of {account.asked:,} asked for, {words.join_words(parts)}; with outputs passes "
        f"computed {account.tokens:,}:"
    )


def sentences(accounts: Accounts, request_id: str | None) -> Iterator[tuple[int, str]]:
    """The tokens of each cause of a request, or of all, and a sentence on it."""
    account = accounts.of(request_id)
    for cause, count in account.causes:
        if cause == tokens.EVICTED and account.evicted:
            yield count, f"{cause}: {_distances(accounts, account.evicted)}"
        elif cause == tokens.SHORT:
            size = words.plural(accounts.block_tokens, "token")
            yield count, f"{cause} of {size}: {_short(accounts, request_id)}"
        elif cause == tokens.OFF and not accounts.token_ids:
            unknown = "the records do not tell which tokens are new"
            yield count, f"{cause}: nothing is found; {unknown}"
        elif cause == tokens.STATE:
            yield count, f"{cause}: {_states(account.kept)}"
        else:
            yield count, f"{cause}: {CAUSES[cause]}"


def _short(accounts: Accounts, request_id: str | None) -> str:
    """Why tokens fill no block; where no prompt fills one, that none can ever be found."""
    prompts = accounts.prompt_tokens
    longest = max(prompts.values()) if request_id is None else prompts[request_id]
    if longest < accounts.block_tokens:
        none = "no prompt, of at most" if request_id is None else "not even its prompt of"
        return f"{none} {longest:,} tokens fills a block, so it can never be found"
    return CAUSES[tokens.SHORT] if accounts.token_ids else "a prompt's end that fills no block"


def _states(kept: "Counter[Kept]") -> str:
    """'attention has the blocks of 384 tokens, Mamba has no state at the end of any', of a request;
    of several look-ups their cause."""
    kinds = {kind for each in kept for kind in each.kinds}
    align = "; vLLM's align mode keeps that of a prompt's last full block" if MAMBA in kinds else ""
    if len(kept) > 1:
        return CAUSES[tokens.STATE] + align
    ((groups, _),) = kept.items()
    at = f"behind token {groups.part_tokens:,}" if groups.part_tokens else "at the end of any"
    return (
        f"attention has the blocks of {groups.whole_tokens:,} tokens, "
        f"{words.join_words([*groups.kinds])} has no state or window {at}{align}"
    )


def _distances(accounts: Accounts, evicted: "Counter[Eviction]") -> str:
    """'reuse distance 13,400 blocks exceeds the pool's 6,656', and of those below the pool."""
    pool, host = accounts.pool_blocks, accounts.host_blocks
    beyond = [each.distance_blocks for each in evicted if each.held_blocks is None]
    within = [each for each in evicted if each.held_blocks is not None]
    parts = []
    if beyond:
        verb = "exceeds" if min(beyond) == max(beyond) else "exceed"
        too = f" and the host tier's {host:,}" if host and min(beyond) >= host else ""
        parts.append(f"reuse {_range('distance', beyond)} {verb} the pool's {pool:,}{too}")
        if kept := sum(
            count for each, count in evicted.items() if pool <= each.distance_blocks < host
        ):
            parts.append(
                f"of {kept:,} tokens it is below the host tier's {host:,}, which did not have them"
            )
    if within:
        held = max(each.held_blocks or 0 for each in within)
        distances = [each.distance_blocks for each in within]
        count = sum(evicted[each] for each in within)
        of_these = f"of {count:,} the" if beyond else "although its"
        verb = "is" if min(distances) == max(distances) else "are"
        parts.append(
            f"{of_these} reuse {_range('distance', distances)} {verb} below the pool's {pool:,}: "
            f"requests that ran held up to {held:,}"
        )
    return "; ".join(parts)


def _range(name: str, blocks: list[int]) -> str:
    low, high = min(blocks), max(blocks)
    return f"{name} {low:,} blocks" if low == high else f"{name}s of {low:,} to {high:,} blocks"


def _larger(accounts: Accounts, account: Account) -> str:
    """The size of a cache, or of a host tier, that keeps the blocks that were evicted."""
    most = max(each.distance_blocks for each in account.evicted)
    gib = most * accounts.block_bytes / 2**30
    size = f" ({gib:.3g} GiB)" if gib >= 1 else f" ({1024 * gib:.3g} MiB)" if gib else ""
    return (
        f"a KV cache with room for {most:,} blocks{size} beside those of running requests "
        "(cache.blocks; vLLM: --gpu-memory-utilization), or a host tier of that size "
        "(overflow=native; vLLM: --kv-offloading-size)"
    )
