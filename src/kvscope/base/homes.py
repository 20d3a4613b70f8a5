"""Directories of programs' files, and the variables that move them.

Only the standard library is imported here.
"""

import os
from pathlib import Path

# A directory that is usually below another one comes first.
HOMES = (
    ("VLLM_CACHE_ROOT", "XDG_CACHE_HOME", "vllm"),
    ("TRITON_CACHE_DIR", "HOME", ".triton/cache"),
    ("NUMBA_CACHE_DIR", "HOME", ".cache/numba"),
    ("CUDA_CACHE_PATH", "HOME", ".nv/ComputeCache"),
    ("UV_CACHE_DIR", "XDG_CACHE_HOME", "uv"),
    ("HF_HOME", "XDG_CACHE_HOME", "huggingface"),
    ("XDG_CACHE_HOME", "HOME", ".cache"),
    ("XDG_CONFIG_HOME", "HOME", ".config"),
    ("HOME", "", os.path.expanduser("~")),
)
"""Variables, each with the variable whose directory it is below if it is not set, and the path
there.
"""


def directory_of(variable: str) -> Path:
    """The directory that a variable names, or its default."""
    below, name = next((below, name) for variable_, below, name in HOMES if variable_ == variable)
    if path := os.environ.get(variable):
        return Path(path)
    return directory_of(below) / name if below else Path(name)


def mover_of(path: str | os.PathLike[str]) -> str:
    """The variable that moves a file or directory elsewhere; empty if no variable does."""
    sought = Path(os.path.abspath(path))
    for variable, _, _ in HOMES:
        place = directory_of(variable).absolute()
        if sought.is_relative_to(place) and (variable != "HOME" or _is_hidden(sought, place)):
            return variable
    return ""


def _is_hidden(path: Path, home: Path) -> bool:
    """Whether a file in a home belongs to a program, not to the user."""
    parts = path.relative_to(home).parts
    return bool(parts) and parts[0].startswith(".")


def advice(path: str | os.PathLike[str] | None) -> str:
    """Advice for a file that cannot be written, '; VARIABLE names another place'; else empty."""
    variable = mover_of(path) if path else ""
    return f"; {variable} names another place for it" if variable else ""
