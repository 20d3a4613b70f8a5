"""Oracles of KV groups: what they are, and the blocks and bytes that requests hold of each."""

from dataclasses import replace

import numpy as np
import pandas as pd

from kvscope.analyse.oracles.held import contexts, group_blocks, held_before
from kvscope.analyse.oracles.run_tables import RunTables, bad_rows, combine
from kvscope.analyse.oracles.settings import differing
from kvscope.analyse.planned import experiment_of
from kvscope.arraytypes import Ints
from kvscope.kv_plan import BY_CHUNK, BY_WINDOW
from kvscope.oracle import Violations


def groups_wrong(run: RunTables) -> Violations:
    """The KV groups are numbered from 0, and their blocks have room for their contents.

    Every layer has the same padded size, and some group fills a block of the cache, whose size
    run.json has. A window belongs to attention that is limited to one.
    """
    rows, fullest = run.records.kv_groups, run.records.kv_groups["padded_bytes"].max()
    limited = rows["kind"].isin([*BY_WINDOW, *BY_CHUNK])
    first, layers = rows.iloc[0], rows["layers"].astype(np.int64)
    wrong = rows["kv_group"] != np.arange(len(rows))
    wrong |= (layers < 1) | (rows["block_tokens"] < 1)
    wrong |= limited != rows["window_tokens"].notna()
    wrong |= ~rows["useful_bytes"].between(1, rows["padded_bytes"])
    wrong |= rows["padded_bytes"] * layers.iloc[0] != first["padded_bytes"] * layers
    wrong |= (rows["block_bytes"] != run.engine.block_bytes) | (fullest != rows["block_bytes"])
    return bad_rows(
        rows,
        wrong,
        lambda r: (
            f"KV group {r['kv_group']} has {r['layers']} layers of {r['kind']} with "
            f"{r['useful_bytes']} of {r['padded_bytes']} of {r['block_bytes']} bytes"
        ),
    )


def groups_differ(run: RunTables) -> Violations:
    """The KV groups are those that the settings give for the model's layers.

    The block of a state is for all tokens of the longest request.
    """
    asked = experiment_of(run.records)
    longest = asked.engine.max_model_len
    due = [replace(of, block_tokens=longest) if of.state else of for of in asked.kv_groups]
    found, expected = (sorted(map(str, groups)) for groups in (run.kv_groups, due))
    return differing([("KV groups", found, expected)])


def group_blocks_differ(run: RunTables) -> Violations:
    """The blocks of each group are those that requests hold of it, and a window frees the others.

    Where one group keeps all tokens they are not recorded by group.
    """
    steps, lost, stays = run.steps, run.victims, run.stays
    held = group_blocks(run, stays["context_tokens"], stays["slot_tokens"])
    due = np.stack([run.sum_over_passes(stays, pd.Series(of, stays.index)) for of in held.T], 1)
    had = held_before(run, lost)
    fewest, most = (group_blocks(run, of, had["slot_tokens"]) for of in contexts(had))
    return combine(
        _differ(run, steps, "group_blocks_used", due, due),
        _differ(run, lost, "group_blocks", fewest, most),
        bad_rows(
            run.resumptions,
            run.resumptions[["group_blocks", "kv_bytes"]].notna().any(axis=1),
            lambda _: "a resumption has group_blocks or kv_bytes",
        ),
    )


def _differ(
    run: RunTables, rows: pd.DataFrame, column: str, fewest: Ints, most: Ints
) -> Violations:
    """Rows whose list of blocks is not between two of them."""
    if not run.groups_differ:
        return bad_rows(rows, rows[column].notna(), lambda _: f"{column} of a single group")
    found, complete = _listed(rows[column], len(run.kv_groups))
    outside = np.any((found < fewest) | (found > most), axis=1)
    return bad_rows(
        rows.assign(due=most.tolist()),
        outside | ~complete.to_numpy(bool),
        lambda r: f"{column} is {r[column]}, requests hold {r['due']}",
    )


def group_bytes_differ(run: RunTables) -> Violations:
    """The bytes in use, and those of a victim, are those of its blocks of each group."""
    return combine(
        _bytes_differ(run, run.steps, "kv_bytes_used", "kv_blocks_used", "group_blocks_used"),
        _bytes_differ(run, run.victims, "kv_bytes", "blocks", "group_blocks"),
    )


def _bytes_differ(
    run: RunTables, rows: pd.DataFrame, column: str, blocks: str, by_group: str
) -> Violations:
    """Rows whose bytes are not those of their blocks, which those of all groups add up to."""
    sizes, counts = np.array([group.useful_bytes for group in run.kv_groups]), rows[[blocks]]
    found = counts.to_numpy(np.int64)
    if run.groups_differ:
        found, _ = _listed(rows[by_group], len(sizes))
    due = found @ sizes
    wrong = (rows[column] != due) | (found.sum(axis=1) != rows[blocks])
    return bad_rows(
        rows.assign(due=due),
        wrong,
        lambda r: f"{column} is {r[column]}, {r[blocks]} blocks have {r['due']}",
    )


def _listed(column: pd.Series, groups: int) -> tuple[Ints, "pd.Series[bool]"]:
    """Lists of counts as rows, and which of them have one for each group; others are all -1."""
    complete = column.map(lambda of: of is not None and np.size(of) == groups).astype(bool)
    rows = [of if known else [-1] * groups for of, known in zip(column, complete, strict=True)]
    return np.array(rows, np.int64).reshape(len(rows), groups), complete
