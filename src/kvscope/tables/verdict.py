"""The verdict of an oracle on a run."""

from dataclasses import dataclass

HELD, VIOLATED, NOT_APPLICABLE = "held", "violated", "not applicable"


@dataclass(frozen=True)
class Verdict:
    """The result of an oracle: held, violated or not applicable, and the first violation."""

    name: str
    sentence: str
    needs: str
    state: str
    violations: int = 0
    first: str = ""
