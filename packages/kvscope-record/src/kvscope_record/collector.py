"""The collector of `kvscope collect` for the directory of a recording."""

from pathlib import Path

from kvscope.api.collecting import foreign
from kvscope_record.segments import is_recording


def _make(directory: Path, stretch: foreign.Stretch) -> list[str]:
    from kvscope_record.collect import collect_recording  # pandas comes with it

    return collect_recording(directory, stretch)


RECORDING = foreign.Collector(is_recording, _make)
