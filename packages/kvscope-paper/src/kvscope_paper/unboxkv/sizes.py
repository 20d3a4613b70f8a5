"""Limits of published files, which are checked before a file is read into memory."""

LONGEST_SERIES_BYTES = 1 << 24
"""A published CSV file: the largest has 2 MB."""

LONGEST_SERIES_MS = 10**12
"""A published run, or a pass of it: 31 years."""

MOST_REQUESTS = (1 << 30) - 1
"""Requests that run, wait or are swapped out at a time: two such counts add up to an int32."""

MOST_MOVES = 1 << 22
"""Requests that a published run admits, loses or resumes in all; each makes a row."""

LONGEST_RECORD_BYTES = 1 << 25
"""A line of a published kernel trace: a prefill pass of some 700,000 tokens."""

MOST_ADDRESS = 2**46
"""Bytes of a cache, and so of an address in it."""

MOST_TRACED_BLOCKS = 1 << 16
"""Blocks of all requests of a published batch; the artifact's buffer had room for 800."""
