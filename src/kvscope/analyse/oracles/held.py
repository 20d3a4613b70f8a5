"""What requests hold of the KV cache: the blocks of each KV group, and what victims had."""

import numpy as np
import pandas as pd

from kvscope.analyse.oracles.run_tables import (
    OF_REQUEST,
    RunTables,
    blocks_of,
    counts_of,
    last_until,
)
from kvscope.arraytypes import Ints


def group_blocks(run: RunTables, context_tokens: pd.Series, tokens: pd.Series) -> Ints:
    """Blocks of each KV group (a column) of requests with room for so many tokens.

    `context_tokens` of these were computed before.
    """
    context, room = (of.to_numpy(np.int64) for of in (context_tokens, tokens))
    return np.stack([group.held_blocks(context, room) for group in run.kv_groups], axis=1)


def held_blocks(run: RunTables, context_tokens: pd.Series, tokens: pd.Series) -> pd.Series:
    """The same of all KV groups together."""
    if not run.groups_differ:
        return blocks_of(tokens, run.records.block_size)
    return pd.Series(group_blocks(run, context_tokens, tokens).sum(axis=1), tokens.index)


def kept_blocks(run: RunTables, victims: pd.DataFrame) -> pd.Series:
    """Blocks of the tokens of victims: without those for what a pass was to compute of them."""
    size, tokens = run.records.block_size, victims["tokens"]
    if not run.groups_differ:
        return blocks_of(tokens, size)
    given = blocks_of(tokens + counts_of(victims["scheduled_tokens"]), size)
    beyond = len(run.kv_groups) * (given - blocks_of(tokens, size))
    return victims["blocks"].astype(np.int64) - beyond


def held_before(run: RunTables, victims: pd.DataFrame) -> pd.DataFrame:
    """What each of these victims had: `context_tokens`, `end_tokens`, `slot_tokens`, `length`.

    `context_tokens` and `end_tokens` were in the cache before and after its last pass; `length` are
    its tokens of prompt and output so far. They are NaN if it had no pass before. `slot_tokens` are
    those that it had blocks for.
    """
    rows = run.batch.merge(run.records.requests[[*OF_REQUEST, "prompt_tokens"]], on=OF_REQUEST)
    rows["length"] = rows["prompt_tokens"] + rows["sampled_before"] + rows["sampled_tokens"]
    rows = rows.rename(columns={"step": "at"})
    lost = victims.assign(step=victims["step"] - 1)
    known = lost[OF_REQUEST].assign(at=last_until(lost, rows[[*OF_REQUEST, "at"]]))
    columns = ["context_tokens", "end_tokens", "slot_tokens", "length"]
    found = known.merge(rows[[*OF_REQUEST, "at", *columns]], how="left")
    found = found[columns].set_axis(victims.index)
    given = victims["scheduled_tokens"].astype(float).fillna(0)
    slots = found["slot_tokens"].clip(lower=found["end_tokens"] + given).fillna(0)
    return found.assign(slot_tokens=slots)


def contexts(held: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """The most and the fewest tokens that were computed before victims got their blocks.

    A victim whose next pass was tried in vain has freed what a window leaves behind before it.
    """
    return held["end_tokens"].fillna(0), held["context_tokens"].fillna(0)
