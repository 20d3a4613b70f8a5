"""Files, written whole or not at all, and read so that damage is one sentence.

- `files`: `atomic_path`, `write_text`, `write_json`, `read_json`, `make_directory`, `remove`;
  `check_name` of a file that a user names; `sha256_of`, `umask`
- `reading`: `open_file`; `read_bytes` and `text_lines`, within limits; `refusing`, which makes
  BadInput of what a library raises, `damage` and `first_fault` of an error of pydantic; `one_line`
  and `short_repr` of what is quoted
- `limits` of what is read: `COUNT`, `INT32`, `LATEST_EPOCH_S`, `LONGEST_REPEAT_S`,
  `LONGEST_RUN_NS`, and `LONGEST_FLUSH_BYTES`, the longest line
- `layout` of results: `experiment_directory` and `tables_directory`; `STUDIES` with a `MANIFEST`
  each; `SEGMENTS`, the files of a recording, which kvscope knows where run.json is still to be made
  of them
"""

from kvscope.base import files, layout, limits, reading
from kvscope.base.zstd_lines import zstd_lines

__all__ = ["files", "layout", "limits", "reading", "zstd_lines"]
