"""Events whose lists take little memory: a stretch has millions of numbers."""

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from kvscope_record.records import Arrival, Event, Sampled, Scheduled


class Packed(Sequence[Any]):
    """A list as JSON, which is read again when it is used."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._json = bytes(memoryview(orjson.dumps(values)))  # which has room for more

    def _values(self) -> list[Any]:
        values: list[Any] = orjson.loads(self._json)
        return values

    def __len__(self) -> int:
        return len(self._values())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values())

    def __getitem__(self, place: Any) -> Any:
        return self._values()[place]


class Compact:
    """Makes events compact. The lists of a pass are often those of the pass before."""

    def __init__(self) -> None:
        self._requests = self._tokens = array("i")

    def __call__(self, event: Event) -> Event:
        """An event with compact lists."""
        if isinstance(event, Arrival):
            return event._replace(hashes=Packed(event.hashes))
        if isinstance(event, Scheduled):
            self._requests = _same(self._requests, event.requests)
            self._tokens = _same(self._tokens, event.computed)
            return event._replace(
                requests=self._requests,
                computed=self._tokens,
                cached=array("i", event.cached),
                blocks=Packed(event.blocks),
            )
        if isinstance(event, Sampled):
            self._requests = _same(self._requests, event.requests)
            self._tokens = _same(self._tokens, event.tokens)
            return event._replace(requests=self._requests, tokens=self._tokens)
        return event


def _same(last: "array[int]", values: Sequence[int]) -> "array[int]":
    """The values as an array: the last one if it has them."""
    numbers = array("i", values)
    return last if numbers == last else numbers
