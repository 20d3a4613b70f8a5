"""Limits of what readers accept from files; larger content is refused or cut.

The limits admit every real file that is known. They bound memory and time in proportion to the size
of a file, also if it is damaged or hostile.
"""

INT32 = (-(2**31), 2**31 - 1)
"""What the int32 columns of kvscope.tables hold."""

COUNT = (0, 2**31 - 1)
"""A count or an index in an int32 column."""

# ------------------------------------------------------------ JSON

LONGEST_JSON_BYTES = 1 << 26
"""A JSON file that kvscope wrote: about 30,000 experiments of a manifest."""

# ------------------------------------------------------------ time

LATEST_EPOCH_S = 2**33
"""Time of day, in seconds since 1970: the year 2242."""

LONGEST_REPEAT_S = 10**9
"""One repeat of a run, in seconds: 31 years."""

LONGEST_RUN_NS = 10**18
"""Between the start of a run and the readings of its clocks: 31 years."""

# ------------------------------------------------------------ tables

MOST_ROWS_PER_BYTE, FREE_ROWS = 200, 1 << 20
"""Most rows of a table per byte of its file, beyond FREE_ROWS (pyarrow packs 50 equal rows)."""

# ------------------------------------------------------------ kernel_events.jsonl.zst

LONGEST_FLUSH_BYTES = 1 << 28
"""One line: about 8 million events of one layer of one pass, twice the default buffer."""

# ------------------------------------------------------------ Nsight Systems' exports

TIMES_NS = (-4 * 10**18, 4 * 10**18)
"""Instants and durations: the time of day until the year 2096, and sums of two fit an int64."""

LONGEST_NAME = 4096
"""Characters of a name, or of another text; a longer one is cut, and a warning says so."""

MOST_NAMES_BYTES = 1 << 30
"""All different names together."""

DEEPEST_STACK = 1024
"""Ranges open at once on a thread; those within count as nested in the last one, with a warning."""

LONGEST_PATH = 1 << 14
"""Bytes of a path; further names are left out for an ellipsis, and a warning says so."""

MOST_PATH_BYTES = 1 << 28
"""All different paths together; beyond them, as with a path that is too long."""

MOST_TEXT_BYTES = 1 << 27
"""Texts of a row group: names and paths are kept once until then, and many rows share them."""

MOST_CROSSINGS = 1 << 23
"""Ranges that end after a range that contains them; overlapping NVTX domains make a few."""

LONGEST_LOGGED = 1 << 20
"""Characters of a message of the profiler in its log."""

# ------------------------------------------------------------ workloads

LONGEST_REQUEST_BYTES = 1 << 20
"""A line of a trace, ids of its blocks and all."""

LONGEST_CONVERSATION_BYTES = 1 << 28
"""A line of a trace of conversations, ids of the blocks of all its requests and all."""

LONGEST_SHAREGPT_BYTES = 1 << 30
"""A file of conversations; ShareGPT's own has 0.7 GB, and parsed it takes a few times as much."""
