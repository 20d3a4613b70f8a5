"""Sentences on the life of a request, and on where the time of all requests went.

Every sentence follows from the rows that `kvscope_explain.life` reads.
"""

from collections.abc import Iterator
from typing import Any

from kvscope.api.tables import actions, copies
from kvscope.api.words import quantities as words
from kvscope.api.words import time_sources
from kvscope_explain.life import (
    COPIED,
    DECODED,
    FOUND,
    KINDS,
    LOADED,
    PAUSED,
    PREEMPTED,
    PREFILLED,
    QUEUED,
    RECOMPUTED,
    USEFUL,
    Lives,
    Stretch,
    seconds_by_kind,
)

CHOSEN = {
    "last": "as the last that was admitted",
    "first": "as the first that arrived of those that ran",
    "longest": "as the longest that ran",
    "shortest": "as the shortest that ran",
    "least_computed": "as the request with the fewest tokens in the cache",
    "most_computed": "as the request with the most tokens in the cache",
    "random": "at random",
    "cheapest": "as the request that costs least to preempt",
    None: "by the policy's rank",
}
"""Choice of a victim, by `overflow.victim`; None: by a policy that ranks requests itself."""
MOST_WAITS = 10
MOST_NAMES = 4  # requests that a sentence names


def request_facts(lives: Lives, request_id: str) -> dict[str, Any]:
    """One request as a JSON object: its row, its seconds by kind, its stretches."""
    stretches = lives.of(request_id)
    row = lives.row(request_id)
    return {
        "request_id": request_id,
        "time_source": lives.time_source,
        "arrival_s": float(row["arrival_s"]),
        "latency_s": lives.latencies_s[request_id],
        "preemptions": int(row["preemptions"]),
        "aborted": bool(row["aborted"]),
        "seconds": seconds_by_kind(stretches),
        "stretches": [stretch.as_json() | {"sentence": sentence(stretch)} for stretch in stretches],
    }


def request_lines(lives: Lives, request_id: str) -> list[str]:
    """One request in lines: a heading, then a line a stretch."""
    row, stretches, took_s = lives.row(request_id), lives.of(request_id), lives.latencies_s
    place = [*took_s].index(request_id) + 1
    ended = "aborted" if row["aborted"] else "served"
    heading = (
        f"request {request_id}: {row['prompt_tokens']} prompt and {row['output_tokens']} output "
        f"tokens, {ended} in {words.short_duration(took_s[request_id])}{_place(place, len(took_s))}"
        f"{time_sources.mark_of(lives.time_source)}"
    )
    lines = [
        f"{s.start_s:10.3f} s  {words.short_duration(s.duration_s):>9}  {sentence(s)}"
        for s in stretches
    ]
    return [heading, *lines, "", *_shares(stretches)]


def _place(place: int, count: int) -> str:
    if count == 1:
        return ""
    return f", the {'' if place == 1 else f'{ordinal(place)} '}slowest of {count:,}"


def run_facts(lives: Lives) -> dict[str, Any]:
    """All requests of a repeat as a JSON object."""
    return {
        "time_source": lives.time_source,
        "requests": len(lives.latencies_s),
        "latency_s": sum(lives.latencies_s.values()),
        "seconds": seconds_by_kind(lives.all),
        "costliest": [s.as_json() | {"sentence": sentence(s)} for s in costliest(lives.all)],
        "slowest": [*lives.latencies_s][:MOST_WAITS],
    }


def run_lines(lives: Lives) -> list[str]:
    """All requests of a repeat in lines: shares of their time, the costliest waits, the slowest."""
    slowest = [*lives.latencies_s][:MOST_WAITS]
    waits = [
        f"{words.short_duration(wait.duration_s):>10}  request {wait.request_id}: {sentence(wait)}"
        for wait in costliest(lives.all)
    ]
    return [
        total_words(lives),
        *_shares(lives.all),
        "",
        *(["The costliest waits and repetitions:", *waits, ""] if waits else []),
        f"The slowest requests: {', '.join(slowest)}",
    ]


def total_words(lives: Lives) -> str:
    """'12 requests took 3.456 s in all'; a rehearsed run is marked as such."""
    took = words.short_duration(sum(lives.latencies_s.values()))
    mark = time_sources.mark_of(lives.time_source)
    return f"{words.plural(len(lives.latencies_s), 'request')} took {took} in all{mark}"


def costliest(stretches: list[Stretch]) -> list[Stretch]:
    """The stretches, of those that a request alone would not have, that took longest."""
    lost = [stretch for stretch in stretches if stretch.kind not in USEFUL]
    return sorted(lost, key=lambda wait: -wait.duration_s)[:MOST_WAITS]


def _shares(stretches: list[Stretch]) -> Iterator[str]:
    spent = seconds_by_kind(stretches)
    total_s = sum(spent.values())
    for kind, took_s in sorted(spent.items(), key=lambda kind_and_s: -kind_and_s[1]):
        share = took_s / total_s if total_s else 0.0
        yield f"{share:8.1%}  {words.short_duration(took_s):>9}  {kind}: {KINDS[kind]}"


def sentence(stretch: Stretch) -> str:
    """Facts of a stretch from the tables."""
    return _SENTENCES[stretch.kind](stretch.facts)


def _queued(facts: dict[str, Any]) -> str:
    ahead = facts["ahead"]
    beside = (
        f"{words.plural(ahead, 'request')} that arrived before" if ahead else "no earlier request"
    )
    needed, no_room_s = words.plural(facts["blocks"], "block"), facts["no_room_s"]
    if not no_room_s:
        return f"queued with {beside}; there was room for its {needed}"
    return (
        f"queued with {beside}; for {words.short_duration(no_room_s)} its {needed} had no room "
        "in the cache"
    )


def _prefilled(facts: dict[str, Any]) -> str:
    tokens = words.plural(facts.get("tokens", 0), "token")
    return f"prefill of {tokens} {_in_passes(facts)}{_found(facts)}"


def _decoded(facts: dict[str, Any]) -> str:
    sampled = words.plural(facts.get("sampled", 0), "token")
    beside = words.plural(facts.get("beside", 0), "other")
    return f"decode of {sampled} {_in_passes(facts)}, with up to {beside}{_found(facts)}"


def _paused(facts: dict[str, Any]) -> str:
    if "passes" not in facts:
        return "paused: no pass computed it"
    what = f"paused for {words.plural(facts['passes'], 'pass')} of others"
    prefill = facts["prefill_tokens"]
    return f"{what}, which prefilled {words.plural(prefill, 'token')}" if prefill else what


def _preempted(facts: dict[str, Any]) -> str:
    chosen = CHOSEN[facts["victim"]]
    others = facts["for_requests"]
    room = f"to make room for {names(others)}" if others else "for want of a block of its own"
    wanted = ", since the host pool was full" if facts["refused"] else ""
    tokens = words.plural(facts["tokens"], "token")
    done = actions.action(facts["action"]).lost
    lost = f"{words.plural(facts['blocks'], 'block')} of {tokens} {done}{wanted}"
    return f"preempted {chosen} {room}: {lost}; waits to resume"


def _copied(facts: dict[str, Any]) -> str:
    whole = facts["kind"] == copies.KV
    what = "copied back" if whole else "of activations copied back, K and V rebuilt"
    return f"{megabytes(facts['bytes'])} {what}"


def _loaded(facts: dict[str, Any]) -> str:
    blocks, size = words.plural(facts["blocks"], "block"), megabytes(facts["bytes"])
    took = words.short_duration(facts["load_s"])
    return f"waits for the load of {blocks} ({size}) from the host: the copy takes {took}"


def _recomputed(facts: dict[str, Any]) -> str:
    again = words.plural(facts.get("tokens", 0), "token")
    return f"computes {again} again {_in_passes(facts)}{_found(facts)}"


def _found(facts: dict[str, Any]) -> str:
    """Tokens that a request need not compute as it is admitted or resumes."""
    hit, own_hit, loaded = (facts.get(name, 0) for name in FOUND)
    of_these = (
        ", all of them its own"
        if own_hit == hit
        else f", {own_hit:,} of them its own"
        if own_hit
        else ""
    )
    hit_words = f", {words.plural(hit, 'token')} found in the prefix cache{of_these}" if hit else ""
    return hit_words + (f", {words.plural(loaded, 'token')} loaded from the host" if loaded else "")


_SENTENCES = {
    QUEUED: _queued,
    PREFILLED: _prefilled,
    DECODED: _decoded,
    PAUSED: _paused,
    PREEMPTED: _preempted,
    LOADED: _loaded,
    COPIED: _copied,
    RECOMPUTED: _recomputed,
}


def _in_passes(facts: dict[str, Any]) -> str:
    return f"in {words.plural(facts.get('passes', 0), 'pass')}"


def megabytes(size: int) -> str:
    """'4.19 MB', '1,230 MB'."""
    value = size / 1e6
    return f"{value:,.0f} MB" if value >= 999.5 else f"{value:.3g} MB"


def names(requests: list[str]) -> str:
    """'request 3', 'requests 3, 7', or the first of many."""
    shown = ", ".join(requests[:MOST_NAMES])
    more = f" and {len(requests) - MOST_NAMES} more" if len(requests) > MOST_NAMES else ""
    return f"{'request' if len(requests) == 1 else 'requests'} {shown}{more}"


def ordinal(number: int) -> str:
    """'1st', '2nd', '3rd', '11th'."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
