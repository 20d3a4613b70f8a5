"""Items that a thread makes ahead of their use."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def prefetch(items: Iterable[Item]) -> Iterator[Item]:
    """The items, each made by a thread while the one before it is in use; the first one at once."""
    thread, rest = ThreadPoolExecutor(1), iter(items)
    pending = thread.submit(next, rest, None)

    def each() -> Iterator[Item]:
        nonlocal pending
        with thread:
            while (item := pending.result()) is not None:
                pending = thread.submit(next, rest, None)
                yield item

    return each()
