"""Sentences on the life of a request, and on where the time of all requests went.

Every sentence follows from the rows that `kvscope_explain.life` reads.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvscope.api.tables import actions, copies
from kvscope.api.words import quantities as words
from kvscope.api.words import time_sources
from kvscope_explain import causes as why
from kvscope_explain.life import (
    COPIED,
    DECODED,
    FOUND,
    LOADED,
    PAUSED,
    PREEMPTED,
    PREFILLED,
    QUEUED,
    RECOMPUTED,
    THRASHED,
    Lives,
    Stretch,
    seconds_by_cause,
    seconds_by_kind,
)
from kvscope_explain.waits import Wait

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
PREEMPTIONS, WAITS = "The costliest preemptions", "The longest waits"
MOST_LOSSES = 5  # of each
MOST_SLOWEST = 10
MOST_CAUSES, LEAST = 3, 0.02  # of a wait that a sentence names; and their share of the longest
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
        "causes": seconds_by_cause(stretches),
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
        "causes": seconds_by_cause(lives.all),
        "costliest_preemptions": [loss.as_json() for loss in costliest(lives.all)],
        "longest_waits": [loss.as_json() for loss in longest_waits(lives.all)],
        "slowest": [*lives.latencies_s][:MOST_SLOWEST],
    }


def run_lines(lives: Lives) -> list[str]:
    """All requests of a repeat in lines: shares of their time, costliest losses, the slowest."""
    lists = {PREEMPTIONS: costliest(lives.all), WAITS: longest_waits(lives.all)}
    losses = [
        line
        for heading, each in lists.items()
        if each
        for line in (f"{heading}:", *map(_loss_line, each), "")
    ]
    slowest = [*lives.latencies_s][:MOST_SLOWEST]
    shares = _shares(lives.all)
    return [total_words(lives), *shares, "", *losses, f"The slowest requests: {', '.join(slowest)}"]


def _loss_line(loss: "Loss") -> str:
    took = words.short_duration(loss.duration_s)
    return f"{took:>10}  request {loss.request_id}: {loss.sentence}"


def total_words(lives: Lives) -> str:
    """'12 requests took 3.456 s in all'; a rehearsed run is marked as such."""
    took = words.short_duration(sum(lives.latencies_s.values()))
    mark = time_sources.mark_of(lives.time_source)
    return f"{words.plural(len(lives.latencies_s), 'request')} took {took} in all{mark}"


@dataclass(frozen=True)
class Loss:
    """Stretches of a request that it would not have alone: one wait, or all of its preemptions."""

    stretches: Sequence[Stretch]

    @property
    def request_id(self) -> str:
        """The request."""
        return self.stretches[0].request_id

    @property
    def duration_s(self) -> float:
        """Sum of the stretches in seconds."""
        return sum(stretch.duration_s for stretch in self.stretches)

    @property
    def preemptions(self) -> int:
        """Number of its preemptions."""
        return sum(_preemptions(stretch) for stretch in self.stretches)

    @property
    def sentence(self) -> str:
        """Facts of the loss."""
        if len(self.stretches) > 1 and self.preemptions > 1:
            return _preempted_again(self.stretches)
        return "; ".join(map(sentence, self.stretches))

    def as_json(self) -> dict[str, Any]:
        """The loss as a JSON object."""
        return {
            "request_id": self.request_id,
            "kinds": list(dict.fromkeys(stretch.kind for stretch in self.stretches)),
            "duration_s": self.duration_s,
            "preemptions": self.preemptions,
            "causes": seconds_by_cause(list(self.stretches)),
            "sentence": self.sentence,
        }


def _preemptions(stretch: Stretch) -> int:
    if stretch.kind == THRASHED:
        return int(stretch.facts["preemptions"])
    return int(stretch.kind == PREEMPTED)


OF_PREEMPTIONS = (PREEMPTED, THRASHED, COPIED, RECOMPUTED)


def costliest(stretches: list[Stretch]) -> list[Loss]:
    """The requests whose preemptions cost most: waits, copies, and tokens computed again."""
    preempted: dict[str, list[Stretch]] = {}
    for stretch in stretches:
        if stretch.kind in OF_PREEMPTIONS or stretch.facts.get("resumes"):
            preempted.setdefault(stretch.request_id, []).append(stretch)
    return _longest(map(Loss, preempted.values()))


def longest_waits(stretches: list[Stretch]) -> list[Loss]:
    """The longest waits that no preemption has caused."""
    waits = [one for one in stretches if one.kind in (QUEUED, PAUSED, LOADED)]
    return _longest(Loss([wait]) for wait in waits if not wait.facts.get("resumes"))


def _longest(losses: Iterable[Loss]) -> list[Loss]:
    return sorted(losses, key=lambda loss: -loss.duration_s)[:MOST_LOSSES]


def _shares(stretches: list[Stretch]) -> Iterator[str]:
    spent = seconds_by_cause(stretches)
    total_s = sum(spent.values())
    for cause, took_s in sorted(spent.items(), key=lambda cause_and_s: -cause_and_s[1]):
        share = took_s / total_s if total_s else 0.0
        yield f"{share:8.1%}  {words.short_duration(took_s):>9}  {cause}: {why.MEANINGS[cause]}"


def sentence(stretch: Stretch) -> str:
    """Facts of a stretch from the tables."""
    return _SENTENCES[stretch.kind](stretch.facts)


def _queued(facts: dict[str, Any]) -> str:
    ahead, same = facts["ahead"], facts["same_instant"]
    place = f"queued behind {words.plural(ahead, 'request')}" if ahead else "queued as the first"
    if same:
        came = "it came" if same == 1 else f"{same:,} of them came"
        place += f" ({came if ahead > 1 else 'it came'} at the same instant)"
    return f"{place}: {_wait_words(facts['waits'])}"


def _wait_words(waits: Sequence[Wait]) -> str:
    """The causes that took longest, in the order given, and the seconds of all others."""
    longest = sorted(waits, key=lambda wait: -wait.seconds)[:MOST_CAUSES]
    least_s = LEAST * longest[0].seconds if longest else 0.0
    shown = [wait for wait in waits if wait in longest and wait.seconds >= least_s]
    rest_s = sum(wait.seconds for wait in waits if wait not in shown)
    parts = [_wait(wait) for wait in shown]
    parts += [f"{words.short_duration(rest_s)} for other reasons"] if rest_s else []
    return ", ".join(parts) or "no time at all"


def _wait(wait: Wait) -> str:
    took = words.short_duration(wait.seconds)
    return f"{took} {_WAITS[wait.cause](wait)}"


def _behind(wait: Wait) -> str:
    return f"{_after(wait).rstrip()}, which " if wait.behind else "as it "


def _after(wait: Wait) -> str:
    if len(wait.behind) > MOST_NAMES:
        return f"behind {words.plural(len(wait.behind), 'other request')} "
    return f"behind {names(list(wait.behind))} " if wait.behind else ""


def _again(wait: Wait) -> str:
    return f" ({wait.again:.0%} of them computed again)" if wait.again >= 0.005 else ""


def _no_room(wait: Wait) -> str:
    if not wait.passes:
        return "until the next pass"
    needed = words.plural(wait.needed, "block")
    return f"{_behind(wait)}had no room: {needed} needed, up to {wait.free:,} free"


def _never(wait: Wait) -> str:
    needed = words.plural(wait.needed, "block")
    return f"{_behind(wait)}can never run: {needed} needed, more than the cache has"


_WAITS: dict[str, Callable[[Wait], str]] = {
    why.NEXT_PASS: lambda _: "until the next pass",
    why.NO_ROOM: _no_room,
    why.FULL_BATCH: lambda wait: f"while {wait.running:,} requests ran, which is max_num_seqs",
    why.PREEMPTING: lambda wait: f"{_after(wait)}in passes that preempted and admitted no request",
    why.FULL_PASS: lambda wait: (
        f"{_after(wait)}while passes of up to {wait.tokens:,} tokens had too few left{_again(wait)}"
    ),
    why.NOT_ADMITTED: lambda wait: f"{_after(wait)}though there was room",
    why.NEVER: _never,
    why.LOAD_QUEUED: lambda _: "until earlier copies had ended",
    why.LOAD_COPY: lambda _: "for the copy",
    why.LOAD_NOTICED: lambda _: "until the scheduler learned of its end",
    why.UNKNOWN: lambda wait: f"{_after(wait)}for a reason that the records do not have",
}


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
    shared = facts["shared_blocks"]
    lost = f"{words.plural(facts['blocks'] - shared, 'block')} of {tokens} {done}{wanted}"
    beside = f" (others hold {shared:,} more)" if shared else ""
    waits = _wait_words(facts["waits"])
    return f"preempted {chosen} {room}: {lost}{beside}; waits to resume: {waits}"


def _thrashed(facts: dict[str, Any]) -> str:
    again = words.plural(facts["tokens"], "token")
    when = " before its prompt was computed" if facts["in_prefill"] else ""
    return (
        f"preempted {facts['preemptions']:,} times{when}, with up to {facts['most_tokens']:,} "
        f"tokens in the cache: computes {again} again, and gives none{_remedy(facts)}"
    )


def _remedy(facts: dict[str, Any]) -> str:
    if not facts["in_prefill"] or facts["reserves_all"]:
        return ""
    return "; scheduler_reserve_full_isl=true admits a prompt only if all of it has room"


def _preempted_again(stretches: Sequence[Stretch]) -> str:
    """All preemptions of a request in one sentence."""
    losses = [one.facts for one in stretches if one.kind in (PREEMPTED, THRASHED)]
    early = sum(_preemptions(one) for one in stretches if one.facts.get("in_prefill"))
    count = sum(map(_preemptions, stretches))
    again = sum(
        one.facts.get("tokens", 0) for one in stretches if one.kind in (RECOMPUTED, THRASHED)
    )
    back = sum(one.facts["bytes"] for one in stretches if one.kind == COPIED)
    spent = seconds_by_cause(list(stretches))
    parts = [f"preempted {count:,} times"]
    if early:
        parts[0] += f", {'each time' if early == count else f'{early:,} times'} in its prefill"
    if again:
        took = words.short_duration(spent.get(why.RECOMPUTE, 0.0))
        parts.append(f"computes {words.plural(again, 'token')} again in {took}")
    if back:
        took = words.short_duration(spent.get(why.COPY, 0.0))
        parts.append(f"copies {megabytes(back)} back in {took}")
    waits = [
        f"{words.short_duration(took_s)} {cause}"
        for cause, took_s in sorted(spent.items(), key=lambda cause_and_s: -cause_and_s[1])
        if cause not in (why.RECOMPUTE, why.COPY)
    ]
    if waits:
        parts.append(f"waits: {', '.join(waits)}")
    remedy = next((_remedy(facts) for facts in losses if facts["in_prefill"]), "")
    return "; ".join(parts) + remedy


def _copied(facts: dict[str, Any]) -> str:
    whole = facts["kind"] == copies.KV
    what = "copied back" if whole else "of activations copied back, K and V rebuilt"
    return f"{megabytes(facts['bytes'])} {what}"


def _loaded(facts: dict[str, Any]) -> str:
    blocks, size = words.plural(facts["blocks"], "block"), megabytes(facts["bytes"])
    return f"waits for the load of {blocks} ({size}) from the host: {_wait_words(facts['waits'])}"


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
    THRASHED: _thrashed,
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
