"""The kernel traces of the UnBoxKV-IO artifact, as their two files hold them.

Both files are JSON lines, a record a layer of a forward pass. A write record has a row a token:
K's first and last byte in the layer's K tensor, V's in the V tensor, and a duration. A read record
has a row a request of slots (start, duration, block), K's at warp · stride + n for the n-th block
of that warp. The faults in `trace_import` list what they lack.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from kvscope.api.errors import BadInput
from kvscope.api.files import limits, reading
from kvscope.api.runs import json_values
from kvscope_paper.arrays import Int64s
from kvscope_paper.unboxkv import sizes

WRITES_KEY, READS_KEY = "kv_write_pattern_record", "k_read_pattern_record"
V_READS_KEY = "v_read_pattern_record"
RANGE_KEY, DURATION_KEY = "kv_cache_range", "cpu_duration(us)"
WARPS = 4  # of a thread block of the attention kernel
# K tensor: [block, head, head size / x, block size, x]; V: [block, head, head size, block size].
X, ELEMENT_BYTES = 8, 2
USUAL_BLOCK_SIZE = 16

Record = dict[str, Any]


def read_records(paths: Sequence[Path]) -> tuple[list[Record], list[Record]]:
    """The write and the read records of files in any order, numbers in them as arrays.

    BadInput names the line of one that is neither, or not as the artifact has them.
    """
    writes: list[Record] = []
    reads: list[Record] = []
    for path in paths:
        for place, line in enumerate(reading.text_lines(path, sizes.LONGEST_RECORD_BYTES), start=1):
            if line.strip():
                record = _record(line, f"{path}: line {place}")
                (writes if WRITES_KEY in record else reads).append(record)
    if not writes and not reads:
        raise BadInput(f"{paths[0]}: no records of a kernel trace in it")
    return writes, reads


def _record(line: str, where: str) -> Record:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadInput(f"{where} is not JSON ({error})") from None
    is_record = isinstance(record, dict) and {"layer_id", "step", "start_time"} <= set(record)
    if not is_record or (WRITES_KEY not in record and READS_KEY not in record):
        raise BadInput(
            f"{where} is no record of the artifact's kernel traces; give "
            "kv_read_pattern.json, kv_write_pattern.json, or both"
        )
    try:
        return _head(record) | (_writes(record) if WRITES_KEY in record else _reads(record))
    except KeyError as key:
        wrong = f"key {key} is missing"
    except ValueError as error:
        wrong = str(error)
    raise BadInput(f"{where} is not as the artifact has them: {wrong}")


def _head(record: Record) -> Record:
    """Launch of a kernel by the host, with its layer and pass."""
    return {
        **{
            key: json_values.require_integer(record[key], key, limits.COUNT)
            for key in ("layer_id", "step")
        },
        "start_time": json_values.require_number(
            record["start_time"], "start_time", (0, limits.LATEST_EPOCH_S)
        ),
        DURATION_KEY: json_values.require_number(record[DURATION_KEY], DURATION_KEY, (0, 1e9)),
    }


def _writes(record: Record) -> Record:
    rows = json_values.require_list(record[WRITES_KEY], WRITES_KEY)
    if any(len(json_values.require_list(row, WRITES_KEY)) != 5 for row in rows):
        raise ValueError(f"{WRITES_KEY} needs rows of 5 numbers")
    flat = [value for row in rows for value in row]
    lengths = json_values.require_integers(
        record["seq_lens"], "seq_lens", (1, limits.COUNT[1])
    ).tolist()
    if not lengths:
        raise ValueError("seq_lens is empty")
    return {
        "seq_lens": lengths,
        RANGE_KEY: json_values.require_integer(
            record[RANGE_KEY], RANGE_KEY, (1, sizes.MOST_ADDRESS)
        ),
        WRITES_KEY: json_values.require_integers(flat, WRITES_KEY, (0, sizes.MOST_ADDRESS)).reshape(
            -1, 5
        ),
    }


def _reads(record: Record) -> Record:
    """Slots of each request: start, duration, block (-1: unused)."""
    columns: Record = {}
    for key in (READS_KEY, V_READS_KEY):
        rows = [
            json_values.require_integers(row, key, limits.INT32)
            for row in json_values.require_list(record[key], key)
        ]
        if any(not len(row) or len(row) % (3 * WARPS) for row in rows):
            raise ValueError(f"{key} needs rows of {WARPS} times as many slots of 3 numbers")
        columns[key] = [row.reshape(-1, 3) for row in rows]
        if any((slots[slots[:, 2] >= 0, :2] < 0).any() for slots in columns[key]):
            raise ValueError(f"{key} has a negative time where a block was read")
    if len(columns[READS_KEY]) != len(columns[V_READS_KEY]):
        raise ValueError(f"{READS_KEY} and {V_READS_KEY} are not of as many requests")
    return columns


@dataclass(frozen=True)
class Layout:
    """Layout of a layer's K and V tensors in blocks."""

    block_size: int
    block_bytes: int

    @classmethod
    def of(cls, writes: list[Record]) -> "Layout":
        """From how far a token's first and last byte lie apart; BadInput if that fits no layout.

        With s the block size and B a block's bytes they are B - s · element in V, and in K, where
        a token's elements come in groups of x: B - s · x · element + (x - 1) · element.
        """
        rows = np.concatenate([record[WRITES_KEY] for record in writes])
        k, v = np.unique(rows[:, 1] - rows[:, 0]), np.unique(rows[:, 3] - rows[:, 2])
        if len(k) == 1 and len(v) == 1:
            block_size, rest = divmod(int(v[0] - k[0]) // ELEMENT_BYTES + X - 1, X - 1)
            layout = cls(block_size, int(v[0]) + block_size * ELEMENT_BYTES)
            cache_bytes = min(record[RANGE_KEY] for record in writes)
            ranges = {record[RANGE_KEY] % max(layout.block_bytes, 1) for record in writes}
            fits = rows[:, :4].max() < cache_bytes <= limits.COUNT[1] * layout.block_bytes
            if block_size > 0 and not rest and ranges == {0} and fits:
                return layout
        raise BadInput(
            f"{WRITES_KEY}: its addresses fit no cache of 16-bit elements in vLLM 0.4.2's layout"
        )

    def places(self, rows: Int64s) -> tuple[tuple[Int64s, Int64s], tuple[Int64s, Int64s]]:
        """Block and token slot of each row's first byte: of K, and of V."""
        k, v = (divmod(rows[:, column], self.block_bytes) for column in (0, 2))
        return (k[0], k[1] // (X * ELEMENT_BYTES)), (v[0], v[1] // ELEMENT_BYTES)


def _began(records: list[Record]) -> float:
    """Epoch seconds of the first record; BadInput if the last one is not of the same run."""
    begins = [float(record["start_time"]) for record in records]
    first, last = min(begins), max(begins)
    if last - first >= limits.LONGEST_REPEAT_S:
        raise BadInput(
            f"start_time is {first:g} in one record and {last:g} in another (seconds since 1970); "
            "give files of one run"
        )
    return first


def _by_place(records: list[Record], key: str) -> dict[tuple[int, int], Record]:
    """The records by (step, layer); BadInput if one comes twice."""
    by_place: dict[tuple[int, int], Record] = {}
    for record in records:
        place = record["step"], record["layer_id"]
        if place in by_place:
            raise BadInput(
                f"{key}: step {place[0]}, layer {place[1]} comes twice; give the files of one run, "
                "each once"
            )
        by_place[place] = record
    return by_place


@dataclass
class KernelTraces:
    """Both files together: what each forward pass wrote and read, layer by layer."""

    writes: dict[tuple[int, int], Record]
    reads: dict[tuple[int, int], Record]
    layout: Layout
    began: float  # epoch seconds of the first record
    prompts: list[int] | None  # tokens of each request; None if its prefill is not in the files
    prefill: int  # the step that did it

    @classmethod
    def of(cls, writes: list[Record], reads: list[Record]) -> "KernelTraces":
        """BadInput if requests join on the way: rows would not stay the same requests'."""
        prefills = {r["step"]: r["seq_lens"] for r in writes if max(r["seq_lens"]) > 1}
        if len(prefills) > 1:
            raise BadInput(
                f"{WRITES_KEY}: {len(prefills)} prefill passes; which request has which row is "
                "known of one only"
            )
        layout = Layout.of(writes) if writes else Layout(USUAL_BLOCK_SIZE, 0)
        prefill, prompts = next(iter(prefills.items()), (0, None))
        if prompts is None and not reads:
            raise BadInput(
                f"{WRITES_KEY}: neither a prefill pass nor reads, so no request's length is known"
            )
        rows = {len(r[READS_KEY]) for r in reads}
        if prompts is not None and (other := rows - {len(prompts)}):
            raise BadInput(
                f"{READS_KEY}: a record has {max(other)} requests, the prefill pass "
                f"{len(prompts)}; give files of one run"
            )
        trace = cls(
            writes=_by_place(writes, WRITES_KEY),
            reads=_by_place(reads, READS_KEY),
            layout=layout,
            began=_began([*writes, *reads]),
            prompts=prompts,
            prefill=prefill,
        )
        trace._check()
        return trace

    def _check(self) -> None:
        """BadInput if the records of a pass are not of the requests that it has."""
        for step, layer in self.passes:
            where = f"step {step}, layer {layer}"
            if self.prompts is not None and step < self.prefill:
                raise BadInput(f"{where}: before the prefill pass, which is step {self.prefill}")
            context, scheduled = self.lengths(step, layer)
            record = self.writes.get((step, layer))
            if record is not None and len(record[WRITES_KEY]) != sum(scheduled):
                raise BadInput(
                    f"{WRITES_KEY}: {where} is not as the artifact has them, "
                    f"{len(record[WRITES_KEY])} rows for {sum(scheduled)} tokens"
                )
            blocks = sum(context) // self.layout.block_size + len(context)
            if blocks > sizes.MOST_TRACED_BLOCKS:
                raise BadInput(f"{where}: {blocks:,} blocks, more than the artifact could trace")

    @cached_property
    def passes(self) -> list[tuple[int, int]]:
        """(step, layer) of all records whose requests' lengths are known, in order."""
        return sorted({*self.reads} if self.prompts is None else {*self.writes, *self.reads})

    def lengths(self, step: int, layer: int) -> tuple[list[int], list[int]]:
        """Each request's context before the pass, and its scheduled tokens."""
        if self.prompts is None:
            return self._lengths_by_reads(step, layer)
        if step == self.prefill:
            return [0] * len(self.prompts), list(self.prompts)
        return [n + step - self.prefill - 1 for n in self.prompts], [1] * len(self.prompts)

    def _lengths_by_reads(self, step: int, layer: int) -> tuple[list[int], list[int]]:
        """Lengths by K reads: as many blocks, the last filled to the write, or else to its end."""
        blocks = [int((slots[:, 2] >= 0).sum()) for slots in self.slots(step, layer, "k")]
        last = np.full(len(blocks), self.layout.block_size - 1)
        record = self.writes.get((step, layer))
        if record is not None and len(record[WRITES_KEY]) == len(blocks):
            (_, last), _ = self.layout.places(record[WRITES_KEY])
        context = (np.maximum(blocks, 1) - 1) * self.layout.block_size + last
        return context.tolist(), [1] * len(blocks)

    def slots(self, step: int, layer: int, kind: str) -> list[Int64s]:
        """Slots of each request's read record: start, duration, block (-1: unused)."""
        record = self.reads.get((step, layer))
        patterns: list[Int64s] = record[f"{kind}_read_pattern_record"] if record else []
        return patterns
