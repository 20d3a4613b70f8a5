"""Rows of a pass (`engine.recording`) from vLLM's scheduler output."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from kvscope.engine.recording import ScheduledRequest
from kvscope.engine.request_ids import external_id

BlockTables = Mapping[str, tuple[Sequence[Any], ...]]
"""vLLM's blocks of each request by KV group, by internal id; the id of a block never changes."""


def contexts(scheduled: SchedulerOutput) -> Iterator[tuple[str, int]]:
    """Internal id of each request of a pass, with its tokens in the cache before."""
    for new in scheduled.scheduled_new_reqs:
        yield new.req_id, new.num_computed_tokens
    cached = scheduled.scheduled_cached_reqs
    yield from zip(cached.req_ids, cached.num_computed_tokens, strict=True)


def batch_rows(
    scheduled: SchedulerOutput,
    output: ModelRunnerOutput,
    tables: BlockTables | None,
    hits: Mapping[str, int],
) -> list[ScheduledRequest]:
    """The rows of a pass, in the order in which it was scheduled.

    `hits` has the tokens that requests of the pass found in the prefix cache, by internal id.
    vLLM makes both objects anew for every pass and does not change them afterwards.
    """
    cached = dict(contexts(scheduled))
    orders = scheduled.kv_connector_metadata
    saved: Mapping[str, int] = getattr(orders, "saved_tokens", {})
    loaded: Mapping[str, int] = getattr(orders, "loaded_tokens", {})
    rows = []
    for name, computed in scheduled.num_scheduled_tokens.items():
        row = output.req_id_to_index[name]
        blocks = tables[name] if tables is not None else ()
        rows.append(
            ScheduledRequest(
                external_id(name),
                computed,
                cached[name],
                list(output.sampled_token_ids[row]),
                row,
                hit=hits.get(name, 0),
                loaded=loaded.get(name, 0),
                saved=saved.get(name, 0),
                blocks=tuple([block.block_id for block in group] for group in blocks),
            )
        )
    return rows
