"""Records that are asked for again are not read again, unless they are of another run."""

from pathlib import Path
from typing import Any

from kvscope.report.recent import RecentRecords


def reader(read: list[Path]) -> Any:
    def read_one(directory: Path, record: Any, settings: Any) -> Any:
        read.append(directory)
        return directory, record, settings

    return RecentRecords(read_one, most=2)


def test_the_last_ones_are_kept() -> None:
    read: list[Path] = []
    records, (a, b, c) = reader(read), (Path("a"), Path("b"), Path("c"))
    record, settings = object(), object()
    for directory in (a, b, a, c, a, b):
        assert records(directory, record, settings) == (directory, record, settings)
    assert read == [a, b, c, b]


def test_another_measurement_of_the_same_directory_is_read() -> None:
    read: list[Path] = []
    records, settings = reader(read), object()
    first, second = object(), object()
    assert records(Path("a"), first, settings)[1] is first
    assert records(Path("a"), second, settings)[1] is second
    assert records(Path("a"), second, object())[1] is second
    assert len(read) == 3
