"""The evidence that a run must have for a column to be compared with its replay.

A column's own evidence (`kvscope.tables.evidence`) says where its values are known. To work them
out takes more: what a pass finds in the prefix cache depends on all passes before it, in their
order.
"""

from collections.abc import Collection, Mapping

from kvscope.tables.evidence import (
    BLOCKS,
    CLOCK,
    COPIES,
    HOST_POOL,
    JOBS,
    KV_GROUPS,
    ORDER,
    PREFIXES,
)

CACHED = (ORDER, PREFIXES, BLOCKS)
"""Evidence from which the contents of the prefix cache follow."""

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
