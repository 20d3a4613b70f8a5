"""Causes of a request's time: every second between its arrival and its end has exactly one."""

from collections.abc import Iterable, Mapping

PREFILL = "prefill"
DECODE = "decode"
BESIDE = "decode beside prefill"
PAUSED = "paused"
NEXT_PASS = "next pass"
NO_ROOM = "no room"
PREEMPTING = "pass preempts"
FULL_BATCH = "batch full"
FULL_PASS = "pass full"
NOT_ADMITTED = "not admitted"
NEVER = "never fits"
LOAD_QUEUED = "load queued"
LOAD_COPY = "load"
LOAD_NOTICED = "load noticed"
COPY = "copy back"
RECOMPUTE = "recompute"
UNKNOWN = "not known"

MEANINGS = {
    PREFILL: "computes its prompt",
    DECODE: "computes a token in each pass",
    BESIDE: "computes a token in passes that also compute prompts or lost tokens of others",
    PAUSED: "keeps its blocks while passes compute others",
    NEXT_PASS: "came during a pass, or before the first, and waits for the next",
    NO_ROOM: "the first of the queue has no room in the cache",
    PREEMPTING: "a pass that preempts others admits no request",
    FULL_BATCH: "as many requests run as may run (max_num_seqs)",
    FULL_PASS: "passes have too few tokens left (max_num_batched_tokens, chunk_tokens)",
    NOT_ADMITTED: "there is room: the policy takes others, or loads reserve blocks",
    NEVER: "the first of the queue needs more blocks than the cache has",
    LOAD_QUEUED: "its load waits for earlier copies",
    LOAD_COPY: "its blocks are copied from the host, beside the passes",
    LOAD_NOTICED: "its load has ended, and the scheduler learns of it with the next pass",
    COPY: "its pass begins, and copies its blocks back",
    RECOMPUTE: "computes tokens again that it had lost",
    UNKNOWN: "the records do not say",
}
"""Meaning of each cause, in the order in which a request meets them."""

Causes = Mapping[str, float]
"""Seconds of each cause."""


def total(parts: Iterable[Causes]) -> dict[str, float]:
    """Sum of the seconds of each cause that occurs, in the order of MEANINGS."""
    seconds: dict[str, float] = {}
    for causes in parts:
        for cause, took_s in causes.items():
            seconds[cause] = seconds.get(cause, 0.0) + took_s
    return {cause: seconds[cause] for cause in MEANINGS if cause in seconds}
