"""What a run is a witness of, and what each column that the replay works out needs of it.

A run has a list of evidence. A column is compared where the run has all that the column needs.
"""

from collections.abc import Collection, Mapping

PASSES = "passes"
"""All passes since the engine was empty, and the requests in each."""
ORDER = "order"
"""Passes were scheduled one after another, each knowing the outcome of the one before."""
CLOCK = "clock"
"""Times of passes and requests are readings of one clock."""
WORKLOAD = "workload"
"""Requests were known beforehand, and are served until they have all tokens that they ask for."""
SETTINGS = "settings"
"""The experiment, and with it the policy of preemptions."""
TOKEN_IDS = "token_ids"
"""The tokens of prompts."""
BLOCKS = "blocks"
"""Blocks of the KV cache, whose use follows from tokens."""
PREFIXES = "prefixes"
"""What each request found in the prefix cache."""
HOST_POOL = "host_pool"
"""A pool on the host, and its use."""
COPIES = "copies"
"""Copies of preempted requests, and the seconds that they took."""
JOBS = "jobs"
"""Loads and stores of vLLM's offloading, with their times."""
KV_GROUPS = "kv_groups"
"""The KV groups, and the bytes of their blocks."""

KINDS = (
    *(PASSES, ORDER, CLOCK, WORKLOAD, SETTINGS, TOKEN_IDS, BLOCKS, PREFIXES, HOST_POOL),
    *(COPIES, JOBS, KV_GROUPS),
)

CACHED = (ORDER, PREFIXES, BLOCKS)
"""What the contents of the prefix cache follow from."""

Needs = Mapping[str, Collection[str]]

NEEDS: Mapping[str, Needs] = {
    "requests": {
        "arrival_s": (),
        "prompt_tokens": (),
        "output_tokens": (),
        "aborted": (),
        "first_scheduled_s": (CLOCK,),
        "first_token_s": (CLOCK,),
        "finished_s": (CLOCK,),
        "preemptions": (),
        "conversation": (),
        "turn": (),
    },
    "steps": {
        "phase": (),
        "scheduled_tokens": (),
        "prefill_tokens": (),
        "decode_tokens": (),
        "recomputed_tokens": (),
        "sampled_tokens": (),
        "requests": (),
        "resumed_requests": (),
        "preempted_requests": (),
        "waiting_requests": (),
        "kv_blocks_used": (ORDER, BLOCKS),
        "kv_blocks_total": (BLOCKS,),
        "kv_tokens_used": (ORDER, PREFIXES),
        "host_blocks_used": (ORDER, HOST_POOL),
        "host_blocks_total": (HOST_POOL,),
        "group_blocks_used": (ORDER, BLOCKS, KV_GROUPS),
        "kv_bytes_used": (ORDER, BLOCKS, KV_GROUPS),
    },
    "batch": {
        "phase": (),
        "scheduled_tokens": (),
        "recomputed_tokens": (),
        "context_tokens": (PREFIXES,),
        "sampled_tokens": (),
        "resumed": (),
        "saved_tokens": (COPIES,),
        "hit_tokens": (PREFIXES,),
        "own_hit_tokens": (PREFIXES,),
        "loaded_tokens": (JOBS,),
        "draft_tokens": (),
        "accepted_tokens": (),
    },
    "preemptions": {
        "time_s": (CLOCK,),
        "policy": (),
        "refused": (),
        "blocks": (ORDER, BLOCKS),
        "shared_blocks": (ORDER, BLOCKS),
        "tokens": (),
        "scheduled_tokens": (),
        "group_blocks": (ORDER, BLOCKS, KV_GROUPS),
        "kv_bytes": (ORDER, BLOCKS, KV_GROUPS),
        "hit_tokens": (),
        "own_hit_tokens": (),
        "wait_s": (CLOCK,),
        "recomputed_tokens": (),
        "predicted_s": (),
        "cost_s": (CLOCK, COPIES),
    },
    "transfers": {"blocks": (ORDER, BLOCKS), "bytes": ()},
    "hits": dict.fromkeys(("block", "owner", "cached_step", "resumed", "in_use"), CACHED),
    "evictions": {
        **dict.fromkeys(("request_id", "block", "hits"), CACHED),
        "age_s": (*CACHED, CLOCK),
    },
}
"""The evidence that each column needs beside PASSES, by table."""

ROWS: Needs = {
    "requests": (),
    "steps": (),
    "batch": (),
    "preemptions": (),
    "transfers": (COPIES,),
    "hits": CACHED,
    "evictions": CACHED,
}
"""The evidence that a table needs for its rows to be those of the replay."""
