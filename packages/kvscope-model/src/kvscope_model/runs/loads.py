"""Contents of each pass of a run, for the cost model."""

import numpy as np
import pandas as pd

from kvscope_model.hardware.cost import Chunk, Loads


def loads_of(steps: pd.DataFrame, batch: pd.DataFrame) -> Loads:
    """Contents of the passes of one repeat, in the order of `steps`, which is ascending."""
    pass_index = np.searchsorted(steps["step"].to_numpy(), batch["step"].to_numpy())
    tokens, before = (
        batch[name].to_numpy(np.int64) for name in ("scheduled_tokens", "context_tokens")
    )
    decodes = (tokens == 1) & (before > 0)
    context = before[decodes] + 1.0  # with the newest token
    longest = np.zeros(len(steps))
    np.maximum.at(longest, pass_index[decodes], context)
    chunks: list[list[Chunk]] = [[] for _ in range(len(steps))]
    for place in np.flatnonzero(~decodes):
        chunks[pass_index[place]].append((int(tokens[place]), int(before[place])))
    return Loads(
        chunks,
        np.bincount(pass_index[decodes], minlength=len(steps)),
        np.bincount(pass_index[decodes], context, len(steps)).astype(float),
        longest,
    )
