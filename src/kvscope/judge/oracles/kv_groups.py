"""Oracles of KV groups: what they are, and the blocks and bytes that requests hold of each."""

from dataclasses import replace

import numpy as np

from kvscope.judge.oracles.run_tables import RunTables, bad_rows
from kvscope.judge.oracles.settings import differing
from kvscope.judge.planned import experiment_of
from kvscope.tables.kv_kinds import kind_of
from kvscope.tables.kv_plan import keeps_state
from kvscope.tables.oracle import Violations


def groups_wrong(run: RunTables) -> Violations:
    """The KV groups are numbered from 0, and their blocks have room for their contents.

    Every layer has the same padded size, and some group fills a block of the cache, whose size is
    in run.json. Only groups of windowed or chunked attention have a window.
    """
    rows, fullest = run.records.kv_groups, run.records.kv_groups["padded_bytes"].max()
    limited = rows["kind"].map(lambda kind: bool(kind_of(kind).window)).astype(bool)
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

    A block of a state covers all tokens of the longest request.
    """
    experiment = experiment_of(run.records)
    longest = experiment.engine.max_model_len
    planned = experiment.kv_groups
    groups_ = [replace(g, block_tokens=longest) if keeps_state(g) else g for g in planned]
    found, expected = (sorted(map(str, groups)) for groups in (run.kv_groups, groups_))
    return differing([("KV groups", found, expected)])
