"""The data files of hardware, by name."""

from pathlib import Path

DIRECTORY = Path(__file__).parent
HOST = "cpu"  # the data file of a machine without a GPU


def names() -> list[str]:
    """The hardware that has a data file."""
    return sorted(path.stem for path in DIRECTORY.glob("*.yaml"))
