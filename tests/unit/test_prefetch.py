"""Items made by a thread: the first at once, all in order, an error in its place."""

from collections.abc import Iterator
from threading import Event, get_ident

import pytest

from kvscope.collect.prefetch import prefetch


def test_the_first_item_is_made_before_it_is_asked_for() -> None:
    made = Event()

    def items() -> Iterator[int]:
        made.set()
        yield get_ident()

    thread = prefetch(items())
    assert made.wait(timeout=60)
    assert next(thread) != get_ident()


def test_items_keep_their_order_and_an_error_its_place() -> None:
    def items() -> Iterator[int]:
        yield from (0, 1, 2)
        raise ValueError("no more")

    made: list[int] = []
    with pytest.raises(ValueError, match="no more"):
        made.extend(prefetch(items()))
    assert made == [0, 1, 2]


def test_nothing_comes_of_nothing() -> None:
    assert list(prefetch(())) == []
