"""The binary record of one KV event: the same 32 bytes whether a CPU or a GPU wrote them.

Four little-endian 64-bit words. Kernels write whole words; NumPy reads the fields.
`docs/TRACE_SPEC.md` says what the fields mean.
"""

import numpy as np

EVENT = np.dtype(
    [
        # word 0
        ("kind", "<u1"),  # kvscope.kinds
        ("flags", "<u1"),  # reserved, 0
        ("layer", "<u2"),
        ("row", "<u2"),  # the request's row in the batch
        ("kv_head", "<u2"),
        # word 1
        ("block", "<u4"),
        ("block_position", "<u4"),  # in the request
        # word 2
        ("offset_tokens", "<u2"),
        ("tokens", "<u2"),
        ("duration_ticks", "<u4"),  # LONGEST and whatever is longer
        # word 3
        ("start_ticks", "<u8"),
    ]
)
WORDS = EVENT.itemsize // 8
VERSION = 1
ALL_HEADS = 0xFFFF
LONGEST = 0xFFFFFFFF
