"""The tables of forward passes: batches, preemptions, times of layers."""

from kvscope.tables.column import (
    BOOL,
    F64,
    I32,
    I64,
    INTS,
    ROWS,
    RUNS,
    TEXT,
    Table,
    derived,
    fact,
    key,
    told,
    witnessed,
)
from kvscope.tables.columns import REPEAT, REQUEST, SINCE, SOURCE, STEP

RECOMPUTED = derived(
    "recomputed_tokens", I32, "of these, tokens computed before and lost since", "passes"
)

STEPS = Table(
    "steps",
    "one forward pass",
    (
        REPEAT,
        STEP,
        derived(
            "phase",
            TEXT,
            "'prefill', 'decode', or 'mixed' if the pass does both",
            "passes",
            words=("prefill", "decode", "mixed"),
        ),
        told("start_s", F64, "when scheduling of the pass began, " + SINCE, "clock"),
        told("duration_s", F64, "schedule, forward pass, sampling and bookkeeping, seconds"),
        told("schedule_s", F64, "the scheduler's part of duration_s, seconds", "clock"),
        told("forward_s", F64, "from the schedule to the sampled tokens, seconds", "clock"),
        derived("scheduled_tokens", I32, "tokens computed by the pass", "passes"),
        derived("prefill_tokens", I32, "of these, tokens of prompts or of recomputation", "passes"),
        derived("decode_tokens", I32, "of these, tokens of requests that decode", "passes"),
        RECOMPUTED,
        derived("sampled_tokens", I32, "output tokens the pass gave", "passes"),
        derived("requests", I32, "requests in the batch", "passes"),
        derived("resumed_requests", I32, "of these, requests with batch.resumed", "passes"),
        witnessed(
            "preempted_requests",
            I32,
            "preempted while the pass was scheduled, as vLLM counts",
            "passes",
        ),
        witnessed(
            "waiting_requests", I32, "requests waiting after the pass was scheduled", "passes"
        ),
        witnessed(
            "kv_blocks_used",
            I32,
            "blocks of the KV cache in use during the pass, all groups",
            "passes",
            "blocks",
        ),
        fact("kv_blocks_total", I32, "blocks of the KV cache that requests can use"),
        derived(
            "kv_tokens_used",
            I64,
            "tokens of requests in the cache after the pass; groups with a window keep the last",
            "passes",
            "blocks",
        ),
        witnessed("host_blocks_used", I32, "blocks in use in the host pool", "passes", "host_pool"),
        fact("host_blocks_total", I32, "blocks of the host pool; 0 where there is none"),
        derived("stalled", BOOL, "the pass took far longer than others of its class", "stalls"),
        SOURCE,
        told(
            "load_wait_s",
            F64,
            "seconds before the pass in which there was none, as every request waited for copies "
            "of vLLM's offloading",
            "clock",
            "jobs",
        ),
        witnessed(
            "group_blocks_used",
            INTS,
            "of kv_blocks_used, those of each row of kv_groups; null where one group keeps all",
            "passes",
            "blocks",
            "kv_groups",
            null=RUNS,
        ),
        derived(
            "kv_bytes_used",
            I64,
            "bytes of these blocks without padding, filled or not",
            "passes",
            "blocks",
            "kv_groups",
            null=RUNS,
        ),
        told(
            "context_bytes",
            I64,
            "bytes of the blocks in use, filled or not, where some hold activations in place of K "
            "and V, or ids, which take none; null where all hold K and V",
            "blocks",
            null=RUNS,
        ),
    ),
)

BATCH = Table(
    "batch",
    "one request in one forward pass; those of a pass are in the order in which it was scheduled",
    (
        REPEAT,
        STEP,
        REQUEST,
        derived(
            "phase",
            TEXT,
            "'prefill' (prompt or recomputation) or 'decode'",
            "passes",
            words=("prefill", "decode"),
        ),
        told("scheduled_tokens", I32, "its tokens computed by the pass", "passes", least=1),
        RECOMPUTED,
        witnessed("context_tokens", I32, "its tokens in the cache before the pass", "passes"),
        witnessed("sampled_tokens", I32, "output tokens the pass gave it", "passes", "workload"),
        derived("resumed", BOOL, "it was preempted and has not given a token since", "passes"),
        witnessed(
            "saved_tokens",
            I32,
            "of scheduled_tokens, those whose activations are saved",
            "passes",
            "host_pool",
        ),
        witnessed(
            "hit_tokens",
            I32,
            "of context_tokens, those found in the prefix cache as the pass admitted or resumed it",
            "passes",
            "prefixes",
        ),
        derived(
            "own_hit_tokens",
            I32,
            "of hit_tokens, those of blocks that it had computed",
            "passes",
            "prefixes",
        ),
        witnessed(
            "loaded_tokens",
            I32,
            "of context_tokens, those that vLLM's offloading loaded from the host before the pass",
            "passes",
            "jobs",
        ),
        told(
            "group_hit_tokens",
            INTS,
            "tokens that each KV group of a recorded server had as the pass admitted it; "
            "the request found those that all groups had; null where it found all, or not recorded",
            null=ROWS,
        ),
        told(
            "draft_tokens",
            I32,
            "of scheduled_tokens, those that speculative decoding guessed; null without it",
            "passes",
            null=RUNS,
            kept="accepted_tokens",
        ),
        told(
            "accepted_tokens",
            I32,
            "of draft_tokens, those that the model would have given; the others leave the cache",
            "passes",
            null=RUNS,
        ),
    ),
)

PREEMPTIONS = Table(
    "preemptions",
    "one preemption or one resumption",
    (
        REPEAT,
        key("step", I32, "pass whose scheduling preempted it, or that resumed it"),
        REQUEST,
        key("event", TEXT, "'preempt' or 'resume'", words=("preempt", "resume")),
        told(
            "time_s",
            F64,
            "when it lost its blocks, or the pass that resumed it began, " + SINCE,
            "clock",
        ),
        witnessed(
            "policy",
            TEXT,
            "the action, by name: 'swap', 'recompute' (also where the host pool had no room), …",
            "passes",
            "host_pool",
        ),
        witnessed(
            "refused",
            BOOL,
            "the policy wanted to keep it, and the host pool had no room",
            "passes",
            "host_pool",
        ),
        witnessed(
            "blocks",
            I32,
            "blocks taken from it (preempt) or given to it (resume)",
            "passes",
            "blocks",
        ),
        witnessed(
            "shared_blocks",
            I32,
            "preempt only: of blocks, those that other running requests hold as well",
            "passes",
            "prefixes",
            null=ROWS,
        ),
        witnessed("tokens", I32, "its tokens in the cache when preempted", "passes"),
        told(
            "scheduled_tokens",
            I32,
            "preempt only: tokens that the pass was to compute of it, before it gave them back; "
            "`blocks` are for these, too",
            "passes",
            null=ROWS,
        ),
        witnessed(
            "group_blocks",
            INTS,
            "preempt only: of blocks, those of each row of kv_groups; null where one group keeps "
            "all",
            "passes",
            "blocks",
            "kv_groups",
            null=ROWS,
        ),
        derived(
            "kv_bytes",
            I64,
            "preempt only: bytes of blocks without padding",
            "passes",
            "blocks",
            "kv_groups",
            null=ROWS,
        ),
        derived(
            "hit_tokens", I32, "resume only: tokens found in the prefix cache", "passes", null=ROWS
        ),
        derived(
            "own_hit_tokens",
            I32,
            "resume only: of these, those of blocks that the request had computed",
            "passes",
            null=ROWS,
        ),
        derived(
            "wait_s",
            F64,
            "resume only: seconds since it was preempted",
            "passes",
            "clock",
            null=ROWS,
        ),
        derived(
            "recomputed_tokens",
            I32,
            "resume only: tokens computed before and again",
            "passes",
            null=ROWS,
        ),
        told(
            "predicted_s",
            F64,
            "seconds that the policy expected its action to cost; null if it predicts nothing",
            null=ROWS,
        ),
        derived(
            "cost_s",
            F64,
            "resume only: seconds that it cost: copies both ways, rebuilding, and of each pass "
            "that computed its tokens again, its part of the forward time by tokens",
            "passes",
            "clock",
            "copies",
            null=ROWS,
        ),
        SOURCE,
    ),
)

LAYERS = Table(
    "layers",
    "one transformer block of one forward pass",
    (
        REPEAT,
        STEP,
        key("layer", I32, "transformer block, from 0"),
        told("start_s", F64, "when its forward began on the host, " + SINCE, "clock"),
        told("duration_s", F64, "host seconds in its forward (on a GPU: to launch it)", "clock"),
    ),
)
