"""Bounds of accepted KV events, beside `kvscope.api.files.limits`."""

TICKS = (-(2**61), 2**61)
"""Instants and durations on a clock: the sum of two of them fits an int64."""

MOST_CELLS = 1 << 24
"""Reads that a batch must make at least once (blocks, heads, K and V), and its tokens."""

MOST_HEADS = 0xFFFF
"""KV heads: a record has 16 bits for them, and one value means all heads."""

LONGEST_ID = 200
"""Characters of a request's id."""

FARTHEST_EVENT_NS = 6 * 10**18
"""Between a KV event and the nearest reading of its clock; with the run it still fits an int64."""
