"""The tables of the KV cache: copies, blocks that were found or evicted, and KV groups."""

from kvscope.tables.column import (
    BOOL,
    F64,
    I32,
    I64,
    ROWS,
    TEXT,
    Table,
    derived,
    fact,
    key,
    told,
    witnessed,
)
from kvscope.tables.columns import REPEAT, SINCE, SOURCE

DIRECTION = key(
    "direction", TEXT, "'out' of the KV cache to the host, or 'in'", words=("out", "in")
)
KIND = key("kind", TEXT, "'kv' (K and V), or 'activations' (the inputs of attention)")
BEGAN = told("start_s", F64, "when it began on the host, " + SINCE, "copies")
ENDED = told("end_s", F64, "when it had ended (on a GPU: was launched), " + SINCE, "copies")
COPY_S = told("copy_s", F64, "seconds of the copy itself, by `clock`", "copies")
CLOCK = fact(
    "clock",
    TEXT,
    "'host', 'device' (a GPU's events), 'virtual', or 'log' (from a published one)",
)

TRANSFERS = Table(
    "transfers",
    "one copy between the KV cache and the host, which a pass waits for",
    (
        REPEAT,
        key("step", I32, "pass that it was done for"),
        key(
            "request_id",
            TEXT,
            "request it belongs to; null if it is of several of the pass",
            null=ROWS,
        ),
        DIRECTION,
        KIND,
        witnessed(
            "blocks", I32, "blocks of the KV cache that it reads or fills", "passes", "copies"
        ),
        witnessed("bytes", I64, "bytes copied", "passes", "blocks"),
        BEGAN,
        ENDED,
        COPY_S,
        told(
            "rebuild_s",
            F64,
            "seconds to rebuild K and V of activations; null if not rebuilt",
            "copies",
            null=ROWS,
        ),
        CLOCK,
        SOURCE,
    ),
)

_BLOCK = "physical block of the KV cache"
_POSITION = "the block's place in either request, from 0"
_CACHED = (
    witnessed("owner", TEXT, "request that computed the block", "passes", "prefixes"),
    witnessed(
        "cached_step", I32, "pass that computed the block's last token", "passes", "prefixes"
    ),
)

HITS = Table(
    "hits",
    "one block that a request found in the prefix cache when it was admitted or resumed",
    (
        REPEAT,
        key("step", I32, "pass that admitted or resumed it"),
        key("request_id", TEXT, "request that found the block"),
        witnessed("block", I32, _BLOCK, "passes", "prefixes"),
        key("block_position", I32, _POSITION),
        *_CACHED,
        derived("resumed", BOOL, "it was preempted, and has not run since", "passes"),
        witnessed(
            "in_use", BOOL, "other running requests hold the block as well", "passes", "prefixes"
        ),
    ),
)

EVICTIONS = Table(
    "evictions",
    "one block that left the prefix cache because a request needed its room",
    (
        REPEAT,
        key("step", I32, "pass that was being scheduled"),
        witnessed("request_id", TEXT, "request that needed the room", "passes", "prefixes"),
        key("block", I32, _BLOCK),
        witnessed("block_position", I32, _POSITION, "passes", "prefixes"),
        *_CACHED,
        derived(
            "age_s", F64, "seconds from the start of cached_step to that of step", "passes", "clock"
        ),
        witnessed("hits", I32, "times that the block was found", "passes", "prefixes"),
    ),
)

KV_GROUPS = Table(
    "kv_groups",
    "one KV group: layers whose blocks are allocated together",
    (
        key("kv_group", I32, "number of the group, from 0, as vLLM numbers it"),
        fact(
            "kind",
            TEXT,
            "what is kept, by vLLM's name: 'FullAttention', 'SlidingWindow', …",
            "settings",
        ),
        fact("layers", I32, "layers of the group", "settings"),
        fact("block_tokens", I32, "tokens of a block; a state is kept in one block", "settings"),
        fact(
            "window_tokens",
            I32,
            "tokens of its window or chunk; null without one",
            "settings",
            null=ROWS,
        ),
        fact(
            "useful_bytes",
            I64,
            "bytes of the contents of a block, over the group's layers",
            "settings",
        ),
        fact("padded_bytes", I64, "the same with the padding of each layer", "settings"),
        fact("block_bytes", I64, "bytes that a block of any group takes of the cache", "settings"),
    ),
)
