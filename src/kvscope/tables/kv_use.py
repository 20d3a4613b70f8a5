"""The part of the KV cache that is in use, and that requests may use."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvscope.base.arraytypes import Ints
from kvscope.tables.kv_group import KvGroup
from kvscope.tables.kv_plan import held_blocks

if TYPE_CHECKING:
    import pandas as pd


def token_share(steps: "pd.DataFrame", block_size: int) -> "pd.Series[float]":
    """The share of the cache's room for tokens that is filled, one value a row of `steps`.

    NaN where KV groups differ: a block is then of some layers, and a token has several or none.
    """
    share = steps["kv_tokens_used"] / (steps["kv_blocks_total"] * block_size)
    return share.where(steps["group_blocks_used"].isna())


def most_blocks(groups: Sequence[KvGroup], tokens: Ints) -> Ints:
    """The most blocks of all groups that requests of so many tokens hold, computed one by one.

    Those of a window come and go: a longer request may hold fewer at its end. `tokens` are one or
    more each.
    """
    ends = np.arange(1, tokens.max(initial=1) + 1)
    blocks = np.sum([held_blocks(group, ends - 1, ends) for group in groups], axis=0)
    most: Ints = np.maximum.accumulate(blocks)[tokens - 1]
    return most
