"""The format of KV events, shared by the kernels that write them and the readers.

Kernels on a CPU or a GPU write records of 32 bytes (RECORD): four little-endian 64-bit words. A
*flush*, one line of `kernel_events.jsonl.zst`, holds the records of one layer of one forward pass.
`docs/KV_EVENTS.md` defines every field.
"""

import numpy as np
import numpy.typing as npt
import pybase64

K_READ, V_READ, K_WRITE, V_WRITE = range(4)
KINDS = ("k_read", "v_read", "k_write", "v_write")  # by code

WRITE, ATTENTION = KERNELS = ("write", "attention")  # the kernels that record events

VIRTUAL_CLOCK = "virtual"  # name of the clock of modeled events: recording takes no time on it

RECORD = np.dtype(
    [
        # word 0
        ("kind", "<u1"),  # place in KINDS
        ("flags", "<u1"),  # reserved, 0
        ("layer", "<u2"),
        ("row", "<u2"),  # the request's row in the batch
        ("kv_head", "<u2"),  # or RECORD_ALL_HEADS
        # word 1
        ("block", "<u4"),
        ("block_position", "<u4"),  # in the request
        # word 2
        ("offset_tokens", "<u2"),
        ("tokens", "<u2"),
        ("duration_ticks", "<u4"),  # at most LONGEST_TICKS; longer durations are cut to it
        # word 3
        ("start_ticks", "<u8"),
    ]
)
FIELDS: tuple[str, ...] = RECORD.names or ()
RECORD_WORDS = RECORD.itemsize // 8
RECORD_ALL_HEADS = 0xFFFF
LONGEST_TICKS = 0xFFFFFFFF

# Version 1 has the records as columns of integers, in JSON: runs of earlier versions, and imports.
FLUSH_VERSION, COLUMNS_VERSION = 2, 1
COLUMNS = (
    *("kind", "row", "kv_head", "block", "block_position", "offset_tokens", "tokens"),
    *("start_ticks", "duration_ticks"),
)
ALL_HEADS = -1  # in a flush: the event touches all KV heads at once


def encode_records(records: npt.NDArray[np.void], origin_ticks: int) -> str:
    """Records field by field, as base64; `start_ticks` counts from an origin, modulo 2^64.

    All values of a field stand together, so that they compress well and are read as arrays.
    """
    packed = records.astype(RECORD)  # a copy
    packed["start_ticks"] -= np.uint64(origin_ticks)
    fields = [np.ascontiguousarray(packed[name]).tobytes() for name in FIELDS]
    return pybase64.b64encode(b"".join(fields)).decode("ascii")


def decode_records(text: str) -> dict[str, npt.NDArray[np.generic]]:
    """The fields of records that `encode_records` wrote; ValueError if the text is damaged."""
    raw = pybase64.b64decode(text, validate=True)
    count, rest = divmod(len(raw), RECORD.itemsize)
    if rest:
        raise ValueError(f"{len(raw)} bytes are no records of {RECORD.itemsize}")
    fields, place = {}, 0
    for name in FIELDS:
        fields[name] = np.frombuffer(raw, RECORD[name], count, place)
        place += fields[name].nbytes
    return fields
