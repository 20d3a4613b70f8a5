"""Oracles of memory: the tokens and blocks in use are those that the requests hold."""

from math import gcd

import numpy as np

from kvscope.judge.oracles.run_tables import (
    RunTables,
    bad_rows,
    combine,
)
from kvscope.tables.oracle import Violations


def capacity_exceeded(run: RunTables) -> Violations:
    """No pass uses more blocks of the KV cache, or of the host pool, than there are, or one with a
    number beyond them.
    """
    steps = run.steps
    words = "{0} of {1} blocks of the KV cache in use, {2} of {3} of the host pool"
    pairs = [("kv_blocks_used", "kv_blocks_total"), ("host_blocks_used", "host_blocks_total")]
    beyond = np.any([(steps[used] > steps[total]).to_numpy(bool) for used, total in pairs], axis=0)
    most = steps["kv_blocks_total"].max()
    return combine(
        bad_rows(
            steps, beyond, lambda r: words.format(*(r[column] for pair in pairs for column in pair))
        ),
        *(
            bad_rows(
                rows,
                ~rows["block"].between(0, most),
                lambda r: f"block {r['block']}, of {most} blocks of the KV cache",
            )
            for rows in (run.records.hits, run.records.evictions)
        ),
    )


def context_bytes_wrong(run: RunTables) -> Violations:
    """The bytes in use are those of K and V in some blocks and of activations in others; ids take
    no bytes.
    """
    sizes = (int(run.engine.block_bytes or 0), run.engine.input_block_bytes)
    most = run.steps["kv_blocks_used"].astype("int64") * max(sizes)
    used_bytes = run.steps["context_bytes"].fillna(-1).astype("int64")
    # whole blocks: multiples of what divides both sizes
    wrong = ~used_bytes.between(0, most) | (used_bytes % gcd(*sizes) != 0)
    return bad_rows(
        run.steps,
        wrong,
        lambda r: (
            f"{r['context_bytes']} bytes in {r['kv_blocks_used']} blocks of {sizes[0]} bytes as K "
            f"and V, {sizes[1]} as activations"
        ),
    )
