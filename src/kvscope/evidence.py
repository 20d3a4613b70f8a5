"""Evidence: what the records of a run hold, by name. run.json lists what a run has.

Whoever makes a run states its evidence: an engine, a recording of a server, an import of published
files. Columns, oracles and metrics name the evidence that they need; none asks who made the run. A
kind of evidence holds of all that happened in a run, and may hold of nothing: a run whose copies
are timed has `copies`, also where nothing was copied. A package may add words of its own.
"""

PASSES, ORDER, CLOCK = "passes", "order", "clock"
TOKEN_IDS, WORKLOAD, SETTINGS = "token_ids", "workload", "settings"
BLOCKS, HOST_POOL, KV_GROUPS = "blocks", "host_pool", "kv_groups"
COPIES, JOBS = "copies", "jobs"

MEANINGS = {
    PASSES: "every forward pass from the first on, with its requests and their tokens, and every "
    "preemption",
    ORDER: "each pass was scheduled after the one before had ended; rows of `batch` are in the "
    "order of the schedule",
    CLOCK: "the times of passes and their parts, of preemptions and requests, read from one clock "
    "at the moments that the columns name",
    TOKEN_IDS: "the token ids of prompts and outputs",
    WORKLOAD: "the requests as they came to the engine: lengths, arrivals, conversations",
    SETTINGS: "the settings of the experiment, in experiment.yaml",
    BLOCKS: "the blocks of the KV cache in use, counted while each pass was scheduled",
    HOST_POOL: "the blocks of the host pool in use, and the actions taken with victims",
    KV_GROUPS: "the KV groups of the model, and the bytes of their blocks",
    COPIES: "every copy of preempted or saved tokens, with its size and times",
    JOBS: "every copy of vLLM's offloading, with its times and what became of its blocks",
}
"""Each kind of evidence that kvscope knows, and its meaning."""

ALL = frozenset(MEANINGS)
