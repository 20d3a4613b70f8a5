"""Wheels of a few lines, made by hand. Standard library only: pip's build backends use it, too."""

import base64
import hashlib
import zipfile
from pathlib import Path


def make_wheel(
    folder: Path, name: str, version: str, files: dict[str, str], lines: tuple[str, ...] = ()
) -> Path:
    """A wheel of pure Python with these files (text by path) and lines of metadata."""
    info = f"{name}-{version}.dist-info"
    metadata = ("Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines)
    kind = (
        "Wheel-Version: 1.0",
        "Generator: kvscope",
        "Root-Is-Purelib: true",
        "Tag: py3-none-any",
    )
    files = files | {f"{info}/METADATA": _text(metadata), f"{info}/WHEEL": _text(kind)}
    listed = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in files.items()]
    files[f"{info}/RECORD"] = _text([*listed, f"{info}/RECORD,,"])
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


def _text(lines: "list[str] | tuple[str, ...]") -> str:
    return "".join(f"{line}\n" for line in lines)


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
