"""Sentences on the life of a request, and on where the time of all requests went.

Every sentence follows from the rows that `kvscope.analyse.life` reads.
"""

from collections.abc import Iterator
from typing import Any

from kvscope.actions import action
from kvscope.analyse.life import (
    COPIED,
    DECODED,
    KINDS,
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
from kvscope.copies import KV

MOST_WAITS = 10
MOST_NAMES = 4  # requests that a sentence names


def request_facts(lives: Lives, request_id: str) -> dict[str, Any]:
    """One request as a JSON object: its row, its seconds by kind, its stretches."""
    stretches = lives.of(request_id)
    row = lives.row(request_id)
    return {
        "request_id": request_id,
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
        f"tokens, {ended} in {seconds(took_s[request_id])}, the {ordinal(place)} slowest of "
        f"{len(took_s)}"
    )
    lines = [f"{s.start_s:10.3f} s  {seconds(s.duration_s):>9}  {sentence(s)}" for s in stretches]
    return [heading, *lines, "", *_shares(stretches)]


def run_facts(lives: Lives) -> dict[str, Any]:
    """All requests of a repeat as a JSON object."""
    return {
        "requests": len(lives.latencies_s),
        "latency_s": sum(lives.latencies_s.values()),
        "seconds": seconds_by_kind(lives.all),
        "costliest": [s.as_json() | {"sentence": sentence(s)} for s in costliest(lives.all)],
        "slowest": [*lives.latencies_s][:MOST_WAITS],
    }


def run_lines(lives: Lives) -> list[str]:
    """All requests of a repeat in lines: shares of their time, the costliest waits, the slowest."""
    total_s, slowest = sum(lives.latencies_s.values()), [*lives.latencies_s][:MOST_WAITS]
    waits = [
        f"{seconds(one.duration_s):>10}  request {one.request_id}: {sentence(one)}"
        for one in costliest(lives.all)
    ]
    return [
        f"{count(len(lives.latencies_s), 'request')} took {seconds(total_s)} in all",
        *_shares(lives.all),
        "",
        *(["The costliest waits and repetitions:", *waits, ""] if waits else []),
        f"The slowest requests: {', '.join(slowest)}",
    ]


def costliest(stretches: list[Stretch]) -> list[Stretch]:
    """The stretches, of those that a request alone would not have, that took longest."""
    lost = [stretch for stretch in stretches if stretch.kind not in USEFUL]
    return sorted(lost, key=lambda one: -one.duration_s)[:MOST_WAITS]


def _shares(stretches: list[Stretch]) -> Iterator[str]:
    spent = seconds_by_kind(stretches)
    total_s = sum(spent.values())
    for kind, took_s in sorted(spent.items(), key=lambda one: -one[1]):
        share = took_s / total_s if total_s else 0.0
        yield f"{share:8.1%}  {seconds(took_s):>9}  {kind}: {KINDS[kind]}"


def sentence(stretch: Stretch) -> str:
    """What the tables say of a stretch."""
    return _SENTENCES[stretch.kind](stretch.facts)


def _queued(facts: dict[str, Any]) -> str:
    behind = f"queued behind {count(facts['ahead'], 'request')} that arrived before"
    if not facts["no_room_s"]:
        return f"{behind}; there was room for its {count(facts['blocks'], 'block')}"
    needed = count(facts["blocks"], "block")
    return f"{behind}; for {seconds(facts['no_room_s'])} its {needed} had no room in the cache"


def _prefilled(facts: dict[str, Any]) -> str:
    return f"prefill of {count(facts.get('tokens', 0), 'token')} {_in_passes(facts)}"


def _decoded(facts: dict[str, Any]) -> str:
    made = count(facts.get("sampled", 0), "token")
    return f"decode of {made} {_in_passes(facts)}, with up to {facts.get('beside', 0)} others"


def _paused(facts: dict[str, Any]) -> str:
    if "passes" not in facts:
        return "paused: no pass computed it"
    what = f"paused for {count(facts['passes'], 'pass')} of others"
    prefill = facts["prefill_tokens"]
    return f"{what}, which prefilled {count(prefill, 'token')}" if prefill else what


def _preempted(facts: dict[str, Any]) -> str:
    chosen = "as the newest that ran" if facts["newest"] else "by the policy's rank"
    others = facts["for_requests"]
    room = f"to make room for {names(others)}" if others else "for want of a block of its own"
    wanted = ", since the host pool was full" if facts["refused"] else ""
    tokens = count(facts["tokens"], "token")
    lost = f"{count(facts['blocks'], 'block')} of {tokens} {action(facts['action']).lost}{wanted}"
    return f"preempted {chosen} {room}: {lost}; waits to resume"


def _copied(facts: dict[str, Any]) -> str:
    what = "copied back" if facts["kind"] == KV else "of activations copied back, K and V rebuilt"
    return f"{facts['bytes'] / 1e6:,.3g} MB {what}"


def _recomputed(facts: dict[str, Any]) -> str:
    return f"computes {count(facts.get('tokens', 0), 'token')} again {_in_passes(facts)}"


_SENTENCES = {
    QUEUED: _queued,
    PREFILLED: _prefilled,
    DECODED: _decoded,
    PAUSED: _paused,
    PREEMPTED: _preempted,
    COPIED: _copied,
    RECOMPUTED: _recomputed,
}


def _in_passes(facts: dict[str, Any]) -> str:
    return f"in {count(facts.get('passes', 0), 'pass')}"


def count(number: int, noun: str) -> str:
    """'1 token', '2 tokens', '3 passes'."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


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


def seconds(value: float) -> str:
    """A duration with three digits and its unit."""
    if value < 0.9995e-3:
        return f"{value * 1e6:.3g} µs"
    return f"{value * 1e3:.3g} ms" if value < 0.9995 else f"{value:,.3f} s"
