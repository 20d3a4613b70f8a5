"""Records of runs, of which the last few are kept: the page of a large study fits in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvscope.tables.run_data import RunData

MOST_KEPT = 4  # the two runs of a pair, and the two before


class RecentRecords:
    """Reads the records of runs, and keeps those that were asked for last, with their tables."""

    def __init__(self, read: Callable[..., RunData], most: int = MOST_KEPT) -> None:
        self._read, self._most = read, most
        self._kept: dict[Path, tuple[Any, Any, RunData]] = {}  # the last one asked for is the last

    def __call__(self, directory: Path, record: Any, settings: Any) -> RunData:
        """Records of the run in `directory`; read again if it has another record or settings."""
        kept = self._kept.pop(directory, None)
        if kept is None or kept[0] is not record or kept[1] is not settings:
            kept = record, settings, self._read(directory, record=record, settings=settings)
        self._kept[directory] = kept
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]
        return kept[2]
