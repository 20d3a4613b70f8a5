"""Options of a recording, as the environment variables that the server's processes read."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvscope.api.errors import BadInput
from kvscope.api.words import quantities

DIRECTORY, KEEP, MINUTES = "KVSCOPE_RECORD", "KVSCOPE_RECORD_KEEP", "KVSCOPE_RECORD_MINUTES"
RANGES = "KVSCOPE_RECORD_RANGES"
PLUGIN = "kvscope_record"
"""The name of the entry point by which vLLM loads the recorder (pyproject.toml)."""

GIB = 1 << 30
LEAST_BYTES = 1 << 20


@dataclass(frozen=True)
class RecordOptions:
    """Options of a recording: directory, bytes of files and minutes (None: all) to keep.

    `ranges` is whether each pass is an NVTX range, too, for a profiler.
    """

    directory: Path
    keep_bytes: int = 2 * GIB
    minutes: float | None = None
    ranges: bool = False

    @classmethod
    def of_environment(cls, given: Mapping[str, str] = os.environ) -> "RecordOptions | None":
        """Options from the environment; None without a directory; BadInput for a wrong value."""
        if not given.get(DIRECTORY):
            return None
        return cls(
            Path(given[DIRECTORY]),
            size(given[KEEP], KEEP) if KEEP in given else cls.keep_bytes,
            minutes(given[MINUTES], MINUTES) if MINUTES in given else None,
            bool(given.get(RANGES)),
        )

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """The environment `given` with what the server's processes need to record."""
        entries = {**given, DIRECTORY: str(self.directory.resolve()), KEEP: str(self.keep_bytes)}
        entries.pop(MINUTES, None)
        entries.pop(RANGES, None)
        if self.ranges:
            entries[RANGES] = "1"
        if self.minutes is not None:
            entries[MINUTES] = str(self.minutes)
        if "VLLM_PLUGINS" in given and PLUGIN not in given["VLLM_PLUGINS"].split(","):
            entries["VLLM_PLUGINS"] = ",".join(filter(None, (given["VLLM_PLUGINS"], PLUGIN)))
        return entries


def size(text: str, place: str) -> int:
    """Bytes of a text such as '2GiB'; BadInput names `place` if malformed or below 1 MiB."""
    try:
        return quantities.parse_size(text, least=LEAST_BYTES)
    except ValueError as error:
        raise BadInput(f"{place}: {error}") from None


def minutes(text: str, place: str) -> float:
    """Minutes of a text such as '90' or '1.5h'; BadInput names `place` if it is no duration."""
    try:
        return quantities.parse_duration(text, "min") / 60
    except ValueError as error:
        raise BadInput(f"{place}: {error}") from None
