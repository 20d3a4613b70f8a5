"""Base of the published traces of prefix caches, whose prompts are lists of block ids."""

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import orjson
from pydantic import Field

from kvscope.base import limits
from kvscope.base.errors import BadInput
from kvscope.base.reading import short_repr, text_lines
from kvscope.plan.fields import MAX_LENGTH, Label, Real, Sha256, Tokens
from kvscope.workload.script import Scripted

LARGEST_ID = 2**53
Row = dict[str, Any]


class BlockTrace(Scripted):
    """Base class of traces whose prompts are ids of blocks: equal ids are equal tokens.

    `block_tokens` are the tokens that a block becomes, of `published_block` in the trace; lengths
    of prompts and outputs shrink by the same factor. Times are multiplied by `time_scale`. The
    planner fills in the SHA-256 of the file's content (plan.sources).
    """

    files: ClassVar[dict[str, str]] = {"path": "sha256"}

    path: str
    sha256: Sha256
    block_tokens: Annotated[Tokens | None, Label("tokens of a block of the trace")] = None
    time_scale: Annotated[Real, Field(gt=0, le=1e6), Label("times of the trace multiplied by")] = (
        1.0
    )

    @property
    @abstractmethod
    def published_block(self) -> int:
        """Tokens of a block in the trace."""

    @property
    def tokens_of_block(self) -> int:
        """The tokens that a block of the trace becomes."""
        return self.block_tokens or self.published_block

    def scaled_up(self, tokens: int) -> int:
        """A number of the trace's tokens in tokens of ours, rounded up."""
        return -(-tokens * self.tokens_of_block // self.published_block)

    def scaled_down(self, tokens: int) -> int:
        """A number of the trace's tokens in tokens of ours, rounded down."""
        return tokens * self.tokens_of_block // self.published_block

    def rows(self) -> Iterator[tuple[str, Row]]:
        """The objects of the file, one a line, each with its place in words."""
        lines = text_lines(Path(self.path), limits.LONGEST_CONVERSATION_BYTES)
        for number, line in enumerate(lines, start=1):
            place = f"{self.path}:{number}"
            if not line.strip():
                continue
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError:
                row = None
            if not isinstance(row, dict):
                raise BadInput(f"{place}: not a JSON object")
            yield place, row


def whole_number(row: Row, key: str, place: str, least: int = 1) -> int:
    """A number of tokens in a row; BadInput if the value is no such number."""
    value = row.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_LENGTH:
        raise BadInput(
            f"{place}: {key} is {short_repr(value)} but must be a whole number of {least} to "
            f"{MAX_LENGTH}"
        )
    return value


def seconds(row: Row, key: str, place: str, per_second: int = 1) -> float:
    """A time in a row, at least 0, in units of 1 / per_second; BadInput if the value is no time."""
    value = row.get(key)
    most = limits.LATEST_EPOCH_S * per_second
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise BadInput(f"{place}: {key} is {short_repr(value)} but must be a number of 0 to {most}")
    return value / per_second


def block_ids(row: Row, due: int, how: str, place: str) -> list[int]:
    """The ids of a prompt's blocks; BadInput unless there are as many as are due, rounded `how`."""
    ids = row.get("hash_ids")
    if not isinstance(ids, list) or not all(
        isinstance(i, int) and not isinstance(i, bool) and 0 <= i < LARGEST_ID for i in ids
    ):
        raise BadInput(
            f"{place}: hash_ids is {short_repr(ids)} but must be a list of whole numbers, 0 or more"
        )
    if len(ids) != due:
        raise BadInput(
            f"{place}: has {len(ids)} hash_ids, but its prompt has {due} blocks, rounded {how}"
        )
    return ids
