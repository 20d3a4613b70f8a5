"""Limits of what readers accept from files; larger content is refused or cut.

The limits admit every real file that is known. They bound memory and time in proportion to the size
of a file, also if it is damaged or hostile.
"""

INT32 = (-(2**31), 2**31 - 1)
"""Range of the int32 columns of kvscope.tables."""

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
"""Time from the start of a run to the readings of its clocks: 31 years."""

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
"""Bytes of all different names together."""

DEEPEST_STACK = 1024
"""Ranges open at once on a thread; deeper ones count as nested in the last, with a warning."""

LONGEST_PATH = 1 << 14
"""Bytes of a path; further names are left out for an ellipsis, and a warning says so."""

MOST_PATH_BYTES = 1 << 28
"""Bytes of all different paths together; further ones are treated like a path that is too long."""

MOST_TEXT_BYTES = 1 << 27
"""Texts of a row group: names and paths are kept once until then, and many rows share them."""

MOST_CROSSINGS = 1 << 23
"""Ranges that end after a range that contains them; overlapping NVTX domains make a few."""

LONGEST_LOGGED = 1 << 20
"""Characters of a message of the profiler in its log."""

# ------------------------------------------------------------ workloads

LONGEST_REQUEST_BYTES = 1 << 20
"""Bytes of a line of a trace, with the ids of its blocks."""

LONGEST_CONVERSATION_BYTES = 1 << 28
"""Bytes of a line of a trace of conversations, with the ids of the blocks of all its requests."""

LONGEST_SHAREGPT_BYTES = 1 << 30
"""A file of conversations; ShareGPT's own has 0.7 GB, and parsed it takes a few times as much."""
