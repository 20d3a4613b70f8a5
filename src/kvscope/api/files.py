"""Files, written whole or not at all, and read so that damage is one sentence.

- `files`: `atomic_path`, `write_text`, `write_json`, `make_directory`, `remove`; `check_name` of a
  file that a user names; `umask`
- `reading`: `refusing`, which makes BadInput of what a library raises
- `limits`: `LONGEST_FLUSH_BYTES`, the longest line that is read

`SEGMENTS` are the files of a recording, which kvscope knows where run.json is still to be made of
them.
"""

from kvscope import files, limits, reading
from kvscope.layout import SEGMENTS
from kvscope.zstd_lines import zstd_lines

__all__ = ["SEGMENTS", "files", "limits", "reading", "zstd_lines"]
