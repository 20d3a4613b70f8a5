"""The tables of requests: as planned, and as served."""

from kvscope.tables.column import (
    BOOL,
    F64,
    I32,
    INTS,
    ROWS,
    TEXT,
    TEXTS,
    Table,
    derived,
    fact,
    told,
    witnessed,
)
from kvscope.tables.columns import REPEAT, REQUEST, SINCE

CONVERSATION = fact(
    "conversation", TEXT, "conversation that it is a turn of, or null", "workload", null=ROWS
)
TURN = fact("turn", I32, "turn of the conversation, from 0", "workload", null=ROWS)

WORKLOAD = Table(
    "workload",
    "one request of the workload",
    (
        REQUEST,
        fact(
            "arrival_s",
            F64,
            f"when the request is due at the engine, {SINCE}; null if it follows others, or comes "
            "before a pass",
            "settings",
            null=ROWS,
        ),
        fact("prompt_tokens", I32, "length of the prompt", "settings"),
        fact("output_tokens", I32, "tokens to generate (end-of-sequence is ignored)", "settings"),
        fact(
            "prompt_token_ids", INTS, "the prompt: seeded random token ids", "settings", "token_ids"
        ),
        CONVERSATION,
        TURN,
        fact(
            "after",
            TEXTS,
            "requests that must have finished before it comes; or null",
            "settings",
            null=ROWS,
        ),
        fact(
            "think_s",
            F64,
            "seconds from the end of the last of these to its arrival",
            "settings",
            null=ROWS,
        ),
        fact(
            "output_token_ids",
            INTS,
            "the tokens that must come out, or null",
            "settings",
            "token_ids",
            null=ROWS,
        ),
        told(
            "block_ids",
            INTS,
            "of a recorded request, a number for each full block, or part that vLLM hashes, equal "
            "where all tokens up to its end are",
            null=ROWS,
        ),
        told(
            "text_ids",
            INTS,
            "block_ids that the prompt has without its cache salt or LoRA adapter, if it has one",
            null=ROWS,
        ),
        fact("arrival_pass", I32, "pass before which it comes, or null", "settings", null=ROWS),
        fact("abort_pass", I32, "pass before which it is aborted, or null", "settings", null=ROWS),
    ),
)

REQUESTS = Table(
    "requests",
    "one request of one repeat",
    (
        REPEAT,
        REQUEST,
        told("arrival_s", F64, "when the request came to the engine, " + SINCE, "clock"),
        fact("prompt_tokens", I32, "length of the prompt", "workload"),
        derived("output_tokens", I32, "tokens generated", "passes"),
        told("aborted", BOOL, "it was aborted before its last token"),
        derived(
            "first_scheduled_s",
            F64,
            "start of its first forward pass, " + SINCE,
            "passes",
            "clock",
            null=ROWS,
        ),
        derived(
            "first_token_s",
            F64,
            "end of the pass that gave its first token, " + SINCE,
            "passes",
            "clock",
            null=ROWS,
        ),
        derived(
            "finished_s",
            F64,
            "end of the pass that gave its last token, or when it was aborted, " + SINCE,
            "passes",
            "clock",
        ),
        witnessed("preemptions", I32, "times it was preempted, as vLLM counts", "passes"),
        told(
            "output_sha256",
            TEXT,
            "SHA-256 of its output token ids as little-endian int32",
            "token_ids",
        ),
        CONVERSATION,
        TURN,
        told(
            "chosen_sha256",
            TEXT,
            "the same of the tokens that the model would have given, where the workload's came out",
            "token_ids",
            null=ROWS,
        ),
    ),
)
