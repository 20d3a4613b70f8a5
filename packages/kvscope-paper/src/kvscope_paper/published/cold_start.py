"""Timing of Figures 3a, 3b and 4a: from an idle GPU, with the host's work before a pass.

This belongs to how those figures were measured, not to what a pass costs: no device knows of it.
The numbers are fitted with those of the A100 (docs/MODEL.md, Calibration).
"""

SLOWER_SHARE = 0.1899  # by how much longer a pass takes while the GPU's clock rises …
MOST_S = 0.03205  # … and at most by this
TOKEN_S = 5.959e-7  # of tokenisation
REQUEST_S = 6.498e-5


def from_idle_s(seconds: float, tokens: float, requests: float) -> float:
    """Readings of a clock that starts on an idle GPU, around passes of so many seconds."""
    return seconds + min(SLOWER_SHARE * seconds, MOST_S) + tokens * TOKEN_S + requests * REQUEST_S
