"""Events come out of the spool as buffers brought them, and passes wait only for full buffers."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from kvscope.base.errors import CannotWrite
from kvscope_kernels.engine.spool import MOST_PARTS, Spool

WORD = np.dtype("<u8")


class Words:
    """A buffer of arrays; `begins` has the byte of each in the spool."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        self.before = before
        self.arrays: list[np.ndarray] = []
        self.begins: list[int] = []

    def store(self, spool: Spool) -> None:
        self.before()
        self.begins = [spool.append(array) for array in self.arrays]


@contextmanager
def spool_of(directory: Path, *buffers: Words) -> Iterator[Spool]:
    spool = Spool(directory / "events.tmp", buffers)
    yield spool
    spool.close()
    assert list(directory.iterdir()) == []


def test_what_is_stored_is_read_back(tmp_path: Path):
    random = np.random.default_rng(1)
    with spool_of(tmp_path, Words(), Words()) as spool:
        written: list[tuple[int, np.ndarray]] = []
        for count in (0, 1, 5, 3 * MOST_PARTS):
            buffer = spool.take()
            parts = [random.integers(0, 9, size, WORD) for size in random.integers(0, 6, count)]
            buffer.arrays = [parts]
            spool.give(buffer)
            spool.finish()
            written.append((buffer.begins[0], np.concatenate([np.zeros(0, WORD), *parts])))
        for begin, expected in written:
            np.testing.assert_array_equal(spool.read(begin, WORD, len(expected)), expected)
        assert spool.waited_s < 1


def test_a_spool_that_is_restarted_is_empty(tmp_path: Path):
    with spool_of(tmp_path, Words()) as spool:
        for word in (1, 2):
            buffer = spool.take()
            buffer.arrays = [[np.full(4, word, WORD)]]
            spool.give(buffer)
            spool.finish()
            assert buffer.begins == [0]
            assert spool.read(0, WORD, 4).tolist() == [word] * 4
            with pytest.raises(RuntimeError, match=r"events\.tmp: ends at byte 32"):
                spool.read(0, WORD, 5)
            spool.restart()


def test_a_pass_waits_only_where_all_buffers_are_to_be_stored(tmp_path: Path):
    go_on, taken = threading.Event(), threading.Event()
    with spool_of(tmp_path, *(Words(lambda: go_on.wait(10)) for _ in range(2))) as spool:
        for _ in range(2):
            spool.give(spool.take())
        assert spool.waited_s < 1

        def third() -> None:
            spool.give(spool.take())
            taken.set()

        waiting = threading.Thread(target=third)
        waiting.start()
        assert not taken.wait(0.2)
        go_on.set()
        assert taken.wait(10)
        waiting.join()
        assert spool.waited_s >= 0.1


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (OSError(28, ""), CannotWrite, "No space left on device"),
        (ValueError("in a kernel"), RuntimeError, "KV events"),
    ],
)
def test_an_error_of_the_thread_is_raised(
    tmp_path: Path, error: Exception, raised: type[Exception], words: str
):
    def fail() -> None:
        raise error

    with spool_of(tmp_path, Words(fail)) as spool:
        spool.give(spool.take())
        with pytest.raises(raised, match=words):
            spool.finish()
