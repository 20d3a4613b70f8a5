"""How much a reader takes from a file that others wrote: beyond that it is refused, or cut.

Wide enough for every real file that is known, and narrow enough that whatever a damaged or hostile
file says, memory and time stay in proportion to its size.
"""

INT32 = (-(2**31), 2**31 - 1)
"""What the int32 columns of kvscope.tables hold."""

COUNT = (0, 2**31 - 1)
"""A number of things, or the place of one, in such a column."""

TICKS = (-(2**61), 2**61)
"""Instants and durations on a clock: what is added up of two of them still fits an int64."""

# ------------------------------------------------------------ JSON

LONGEST_JSON_BYTES = 1 << 26
"""A JSON file of kvscope's own: some 30,000 experiments of a manifest."""

# ------------------------------------------------------------ tables

MOST_ROWS_PER_BYTE, FREE_ROWS = 200, 1 << 20
"""Rows of a table's file for each of its bytes, beyond so many (pyarrow packs 50 equal ones)."""

# ------------------------------------------------------------ kernel_events.jsonl.zst

LONGEST_FLUSH_BYTES = 1 << 28
"""A line: some 8 million events of one layer of one pass, twice what a buffer holds by default."""

MOST_EXPANSION, FREE_BYTES = 100, 1 << 24
"""How many times larger than the file its text may be (real ones: 6), beyond so many bytes."""

MOST_CELLS = 1 << 24
"""Reads that a batch owes at least once (blocks, heads, K and V), and tokens that it schedules."""

MOST_HEADS = 0xFFFF
"""KV heads: a record has 16 bits for them, and one value stands for all."""

LONGEST_ID = 200
"""Characters of a request's id."""

LONGEST_RUN_NS = 10**18
"""Between the start of a run and the readings of its clocks: 31 years."""

FARTHEST_EVENT_NS = 6 * 10**18
"""Between a KV event and the nearest reading of its clock; with the run it still fits an int64."""
