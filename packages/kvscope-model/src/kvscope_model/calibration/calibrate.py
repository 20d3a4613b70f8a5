"""`kvscope calibrate`: fit, say how well it fits, and write a device that has the numbers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kvscope.api.errors import BadInput
from kvscope.api.files import files
from kvscope.api.machine import plugins
from kvscope.api.settings import documents
from kvscope.api.tables import runfile
from kvscope_model.calibration import measured
from kvscope_model.calibration.fit import (
    Fit,
    Observation,
    Parameter,
    Values,
    bootstrap,
    fit,
    intervals,
    leave_one_out,
)
from kvscope_model.calibration.predict import predicted_passes
from kvscope_model.calibration.prediction import (
    FittedModel,
    FittedNumber,
    Prediction,
    reference_work_s,
    write_prediction,
)
from kvscope_model.hardware import hardware as data
from kvscope_model.hardware.hardware import Hardware

GROUP = "kvscope.calibration"
DIGITS = 4
BOOTSTRAP_SAMPLES = 20
# Of a device that was calibrated: what holds unless a study says otherwise.
SETS = {"profiler.name": "none", "repeats": 1, "warmup": 0}


@dataclass(frozen=True)
class Calibration:
    """A fit, the intervals of its numbers, and its errors by group of observations.

    `samples` are the numbers as fits to bootstrap samples give them. `left_out_errors` are those of
    a fit without the group, None where the others do not tell (`leave_one_out`).
    """

    fit: Fit
    samples: list[dict[str, float]]
    errors: dict[str, list[float]]
    left_out_errors: dict[str, list[float] | None]

    @property
    def left_out(self) -> dict[str, float | None]:
        """The median of `left_out_errors`, as shares without a sign, of each group."""
        return {
            group: None if errors is None else median(map(abs, errors))
            for group, errors in self.left_out_errors.items()
        }

    @property
    def constants(self) -> dict[str, float]:
        """The hardware's numbers, rounded."""
        return _constants(self.fit.values)

    @property
    def bootstrap(self) -> list[dict[str, float]]:
        """Constants of each bootstrap sample, rounded."""
        return [_constants(sample) for sample in self.samples]

    def left_out_of(self, run: str) -> dict[str, float | None]:
        """Median error of each part of a run by a fit without that run."""
        parts = (group.rpartition(":") for group in self.left_out)
        return {part: self.left_out[f"{own}:{part}"] for own, _, part in parts if own == run}

    def lines(self) -> list[str]:
        """The numbers with their intervals, and the errors, as text."""
        lines = [f"{'number':26} {'value':>11}   95 % of the bootstrap"]
        estimates = intervals(self.fit.values, self.samples)
        for name, value in self.fit.values.items():
            low, high = estimates[name]
            lines.append(f"{name:26} {value:11.4g}   {low:.4g} to {high:.4g}")
        lines += ["", f"{'observations':58} {'n':>4} {'median':>7} {'largest':>8} {'left out':>9}"]
        for group, errors in self.errors.items():
            off = [abs(error) for error in errors]
            left = self.left_out.get(group)
            told = f"{left:9.1%}" if left is not None else ""
            lines.append(f"{group:58} {len(off):4} {median(off):7.1%} {max(off):8.1%} {told}")
        return lines


def _constants(values: Values) -> dict[str, float]:
    return {name: rounded(v) for name, v in values.items() if name in Hardware.model_fields}


def rounded(value: float) -> float:
    """A fitted number or an error with as many digits as are kept."""
    return float(f"{value:.{DIGITS}g}")


def calibrate(
    observations: Sequence[Observation],
    parameters: Sequence[Parameter],
    hardware: Hardware,
    samples: int = BOOTSTRAP_SAMPLES,
) -> Calibration:
    """Fit the parameters, with their intervals and errors."""
    model_fit = fit(observations, parameters, hardware)
    return Calibration(
        model_fit,
        bootstrap(observations, parameters, hardware, samples),
        model_fit.errors(observations),
        leave_one_out(observations, parameters, hardware),
    )


@dataclass(frozen=True)
class PublishedTimes:
    """Times that others published, which a package registers in the group `kvscope.calibration`.

    `hardware` is what they were measured on, `write_errors` writes how well a fit meets them.
    """

    hardware: str
    parameters: Sequence[Parameter]
    observations: Callable[[], list[Observation]]
    write_errors: Callable[[Calibration, Path], None]

    def calibrate(self, samples: int = BOOTSTRAP_SAMPLES) -> Calibration:
        """The numbers of the hardware."""
        hardware = data.read(self.hardware)
        return calibrate(self.observations(), self.parameters, hardware, samples)


def published_times() -> PublishedTimes:
    """Those that are installed; BadInput unless one package registers some."""
    names = plugins.names(GROUP)
    if len(names) != 1:
        raise BadInput(
            "calibrate --published: published times come with one installed package, which "
            f"registers them as {GROUP}; there are {', '.join(names) or 'none'}"
        )
    return plugins.load(GROUP, names[0], PublishedTimes)


def calibrate_runs(directories: Sequence[Path], samples: int = BOOTSTRAP_SAMPLES) -> Calibration:
    """The numbers of the device that these runs were measured on."""
    observations = measured.observations(directories)
    hardware = data.read(measured.HARDWARE)
    return calibrate(observations, measured.parameters(observations), hardware, samples)


def write_predictions(
    calibration: Calibration, fitted: Sequence[Path], others: Sequence[Path]
) -> Iterator[tuple[Path, Prediction]]:
    """Write prediction.json of the runs that were fitted, and of other measured runs."""
    ends = intervals(calibration.fit.values, calibration.samples)
    model = FittedModel(
        runs={runfile.run_sha256(run): run.resolve().name for run in fitted},
        work_s=reference_work_s(fitted),
        constants={
            name: FittedNumber(value=value, low=ends[name][0], high=ends[name][1])
            for name, value in calibration.fit.values.items()
        },
        samples=len(calibration.samples),
    )
    for run in dict.fromkeys([*fitted, *others]):
        passes = predicted_passes(calibration.fit.hardware, run)
        left_out = calibration.left_out_of(run.resolve().name) if run in fitted else {}
        yield run, write_prediction(run, passes, model, left_out)


def write_device(calibration: Calibration, path: Path) -> None:
    """Write a device's option file, to be used as `device=NAME`, NAME the file's."""
    device = {
        "name": "modeled",
        "hardware": measured.HARDWARE,
        "kernels": "vllm",
        "constants": calibration.constants,
        "bootstrap": calibration.bootstrap,
        "sets": SETS,
    }
    heading = (
        "# vLLM's scheduler on a virtual clock, with numbers that `kvscope calibrate` fitted.\n"
    )
    files.write_text(path, heading + documents.dump(device))
