"""Why a run may not be believed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """What speaks against a run: its name, and the figures behind it."""

    name: str
    detail: str
