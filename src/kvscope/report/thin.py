"""Forward passes as a plot needs them: not more than it can draw, and nothing where none ran."""

import pandas as pd

# Between passes the host needs far less; a longer gap means that no request was there.
IDLE_S = 0.01

# How a column of several consecutive passes becomes one value.
MERGE = {
    "step": "first",
    "start_s": "first",
    "prefill_tokens": "mean",
    "decode_tokens": "mean",
    "requests": "max",
    "waiting_requests": "max",
    "kv_blocks_used": "max",
    "kv_blocks_total": "max",
    "kv_tokens_used": "max",
    "host_blocks_used": "max",
    "host_blocks_total": "max",
    "group_blocks_used": "first",
    "kv_bytes_used": "max",
    "stalled": "max",
}

# Columns that are 0 while no request is there, if they are known.
NOTHING = (
    "prefill_tokens",
    "decode_tokens",
    "kv_blocks_used",
    "kv_tokens_used",
    "kv_bytes_used",
    "host_blocks_used",
)


def merged_passes(passes: int, limit: int) -> int:
    """How many consecutive passes must become one so that at most `limit` are left."""
    return max(1, -(-passes // limit))


def thin(steps: pd.DataFrame, limit: int) -> pd.DataFrame:
    """The passes of one repeat, at most `limit` rows, with their `end_s`.

    Of merged passes the tokens are means per pass, everything else is the largest value.
    """
    together = merged_passes(len(steps), limit)
    frame = steps.assign(end_s=steps["start_s"] + steps["duration_s"])
    if together == 1:
        return frame[[*MERGE, "end_s"]]
    groups = pd.Series(range(len(frame)), index=frame.index) // together
    merged: pd.DataFrame = frame.groupby(groups).agg({**MERGE, "end_s": "last"})
    return merged


def with_idle(passes: pd.DataFrame) -> pd.DataFrame:
    """`thin`'s rows with a row of zeros wherever the engine was idle after a pass."""
    following = passes["start_s"].shift(-1)
    idle = passes[following - passes["end_s"] > IDLE_S]
    known = [name for name in NOTHING if passes[name].notna().any()]
    empty = idle.assign(
        start_s=idle["end_s"],
        end_s=following[idle.index],
        **dict.fromkeys(known, 0),
    )
    return pd.concat([passes, empty]).sort_values("start_s", ignore_index=True)


def passes(thinned: pd.DataFrame) -> pd.DataFrame:
    """`with_idle`'s rows, and the last one again at its end: a step plot reaches until there."""
    shown = with_idle(thinned)
    last = shown.iloc[[-1]].assign(start_s=shown["end_s"].iloc[-1])
    return pd.concat([shown, last], ignore_index=True)
