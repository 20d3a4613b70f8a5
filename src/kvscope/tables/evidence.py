"""Evidence: the kinds of facts that the records of a run contain, by name.

Whoever makes a run states its evidence: an engine, a recording of a server, an import of published
files. Columns, oracles and metrics name the evidence that they need, and do not depend on who made
the run. Evidence concerns all events of a kind, also if there are none: a run that would time its
copies has `copies`, even if nothing was copied. A package may add kinds of evidence.
"""

from collections.abc import Mapping
from typing import Any

from kvscope.tables.kv_kinds import all_known, keep_all_together

PASSES, ORDER, CLOCK = "passes", "order", "clock"
TOKEN_IDS, WORKLOAD, SETTINGS = "token_ids", "workload", "settings"
BLOCKS, PREFIXES, KV_GROUPS = "blocks", "prefixes", "kv_groups"
HOST_POOL, COPIES, JOBS, STALLS = "host_pool", "copies", "jobs", "stalls"

MEANINGS = {
    PASSES: "every forward pass from the first on, with its requests and their tokens, and every "
    "preemption",
    ORDER: "each pass was scheduled after the one before had ended, knowing what it gave",
    CLOCK: "the times of passes and their parts, of preemptions and requests, read from one clock "
    "at the moments that the columns name",
    TOKEN_IDS: "the token ids of prompts and outputs",
    WORKLOAD: "the requests as they were due, of which each gets all the tokens that it asks for",
    SETTINGS: "the settings of the experiment, in experiment.yaml",
    BLOCKS: "the blocks of the KV cache in use in each pass, by KV groups whose rules are known",
    PREFIXES: "what each request found in the prefix cache, block by block",
    HOST_POOL: "the blocks of the host pool in use, and the actions taken with victims",
    KV_GROUPS: "the KV groups of the model, and how many of the blocks in use are of each",
    COPIES: "every copy of preempted or saved tokens, with its size and times",
    JOBS: "every copy of vLLM's offloading, with its times and what became of its blocks",
    STALLS: "which passes stalled, by their durations",
}
"""Each kind of evidence that kvscope knows, and its meaning."""

ALL = frozenset(MEANINGS)

OWN = frozenset({PASSES, CLOCK, TOKEN_IDS, WORKLOAD, SETTINGS})
"""Evidence of every run that kvscope made, whatever its engine."""


def of_recording(server: Mapping[str, Any]) -> frozenset[str]:
    """The evidence of a recording, by its `server` and its passes."""
    lacking = {SETTINGS, WORKLOAD, TOKEN_IDS}
    kinds = [group["kind"] for group in server.get("kv_groups", ())]
    together = keep_all_together(kinds)
    if server.get("first_step"):  # earlier contents are not known
        lacking |= {PASSES, ORDER}
    if server.get("missing"):  # passes
        lacking |= {PASSES, ORDER, BLOCKS, PREFIXES}
    if server.get("overlapping"):
        lacking.add(ORDER)
    if server.get("connector"):
        lacking |= {BLOCKS, HOST_POOL, COPIES, JOBS}
    if not all_known(kinds):
        lacking.add(BLOCKS)
    if server.get("prefix_caching") and not together:
        lacking |= {BLOCKS, PREFIXES} if kinds else {PREFIXES}
    if not together:
        lacking.add(KV_GROUPS)
    return ALL - lacking
