"""Published times, to which kvscope-model fits hardware."""

from pathlib import Path

from kvscope_model.calibration import calibrate, fit
from kvscope_model.hardware import hardware as data


def _copy_s(hardware: data.Hardware, values: fit.Values) -> float:
    return hardware.pinned_copy_s


def _write_errors(calibration: calibrate.Calibration, path: Path) -> None:
    path.write_text(f"{sorted(calibration.errors)}\n")


TIMES = calibrate.PublishedTimes(
    "cpu",
    [fit.Parameter("pinned_copy_s", 2e-6, 1e-8, 1e-3)],
    lambda: [fit.Observation("copies", 3e-6, _copy_s)],
    _write_errors,
)
