"""Files, written whole or not at all, and read so that damage is one sentence.

`files` writes atomically and names what it refuses, `reading` makes BadInput of what a library
raises, `limits` has the most that is read at once. `SEGMENTS` are the files of a recording, which
kvscope knows where run.json is still to be made of them.
"""

from kvscope import files, limits, reading
from kvscope.layout import SEGMENTS
from kvscope.zstd_lines import zstd_lines

__all__ = ["SEGMENTS", "files", "limits", "reading", "zstd_lines"]
