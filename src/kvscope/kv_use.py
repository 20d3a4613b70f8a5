"""How much of the KV cache is in use."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def token_share(steps: "pd.DataFrame", block_size: int) -> "pd.Series[float]":
    """The share of the cache's room for tokens that is filled, one value a row of `steps`.

    NaN where KV groups differ: a block is then of some layers, and a token has several or none.
    """
    share = steps["kv_tokens_used"] / (steps["kv_blocks_total"] * block_size)
    return share.where(steps["group_blocks_used"].isna())
