"""Fits of a GPU's numbers to times that were measured, or published.

- `calibrate`: `PublishedTimes`, which a package registers; a `Calibration` with the errors of a
  fit; `rounded`, to the digits that are kept
- `fit`: each `Parameter` with its bounds, each `Observation` of a time, the `Values` of a fit
"""

from kvscope.analyse.calibration import calibrate, fit

__all__ = ["calibrate", "fit"]
