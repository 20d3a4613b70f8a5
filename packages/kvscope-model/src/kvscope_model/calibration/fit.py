"""Least squares over observed times, with bootstrap intervals and leave-one-out errors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from kvscope_model.arraytypes import Floats
from kvscope_model.bootstrap import bootstrap_interval
from kvscope_model.hardware.hardware import Hardware

Values = Mapping[str, float]
# A residual beyond this share weighs less: published constants have slips, passes stall.
OUTLIER_SHARE = 0.03
MOST_STEPS = 60  # after which a fit changes no number by a percent
# The residual of a parameter that is a whole range away from its start. It decides what the times
# do not tell: without it rounding would, and another processor rounds differently.
PULL = 1e-3
SEED = 20250603


@dataclass(frozen=True)
class Parameter:
    """A number to be fitted: its start and its physical bounds."""

    name: str
    start: float
    low: float
    high: float


@dataclass(frozen=True)
class Observation:
    """Observed time, with the model's prediction and the group that it belongs to.

    Each group, `RUN:PART` or a figure, weighs the same, however many observations it has.
    """

    group: str
    seconds: float
    predict: Callable[[Hardware, Values], float]

    @property
    def run(self) -> str:
        """Owner of the group: a run, or a figure."""
        return self.group.partition(":")[0]


@dataclass(frozen=True)
class Fit:
    """The fitted numbers, those that are the hardware's in `hardware`."""

    values: dict[str, float]
    hardware: Hardware

    def errors(self, observations: Sequence[Observation]) -> dict[str, list[float]]:
        """Predicted over observed seconds less 1, by group."""
        errors: dict[str, list[float]] = {}
        for observation in observations:
            error = observation.predict(self.hardware, self.values) / observation.seconds - 1
            errors.setdefault(observation.group, []).append(error)
        return errors


def fit(
    observations: Sequence[Observation], parameters: Sequence[Parameter], hardware: Hardware
) -> Fit:
    """The parameters that minimise the logarithms of predicted over observed seconds.

    What the observations do not tell stays at its start.
    """
    low, high = (np.array([getattr(p, name) for p in parameters]) for name in ("low", "high"))
    start = np.array([p.start for p in parameters])
    counts = {observation.group: 0 for observation in observations}
    for observation in observations:
        counts[observation.group] += 1
    weights = np.array([counts[observation.group] ** -0.5 for observation in observations])

    begun = np.clip(np.log(start / low) / np.log(high / low), 1e-3, 1 - 1e-3)

    def residuals(unit: Floats) -> Floats:
        candidate = _of(parameters, low * (high / low) ** unit, hardware)
        predicted = [
            observation.predict(candidate.hardware, candidate.values)
            for observation in observations
        ]
        observed = [observation.seconds for observation in observations]
        off = weights * np.log(np.array(predicted) / np.array(observed))
        return np.concatenate([off, PULL * (unit - begun)])

    solved = least_squares(
        residuals,
        begun,
        bounds=(0, 1),
        loss="soft_l1",
        f_scale=OUTLIER_SHARE,
        diff_step=1e-4,
        max_nfev=MOST_STEPS,
    )
    return _of(parameters, low * (high / low) ** solved.x, hardware)


def _of(parameters: Sequence[Parameter], numbers: Floats, hardware: Hardware) -> Fit:
    values = {p.name: float(value) for p, value in zip(parameters, numbers, strict=True)}
    of_hardware = {name: value for name, value in values.items() if name in Hardware.model_fields}
    return Fit(values, hardware.model_copy(update=of_hardware))


def bootstrap(
    observations: Sequence[Observation],
    parameters: Sequence[Parameter],
    hardware: Hardware,
    samples: int,
) -> list[dict[str, float]]:
    """The parameters as fits to observations give them that are drawn with repetition.

    They are drawn within their groups, so that each sample has all of them.
    """
    generator = np.random.default_rng(SEED)
    groups: dict[str, list[Observation]] = {}
    for observation in observations:
        groups.setdefault(observation.group, []).append(observation)
    fitted = []
    for _ in range(samples):
        drawn = [
            group[index]
            for group in groups.values()
            for index in generator.integers(len(group), size=len(group))
        ]
        fitted.append(fit(drawn, parameters, hardware).values)
    return fitted


def intervals(
    values: Values, samples: Sequence[Mapping[str, float]]
) -> dict[str, tuple[float, float]]:
    """Interval of 95 % of the samples of each parameter, with its value in it."""
    return {
        name: bootstrap_interval(value, [sample[name] for sample in samples])
        for name, value in values.items()
    }


def leave_one_out(
    observations: Sequence[Observation], parameters: Sequence[Parameter], hardware: Hardware
) -> dict[str, list[float] | None]:
    """Errors of each group's times by a fit to all other groups, as `Fit.errors` has them.

    The groups of one run are left out together. None for a group that has a number of the hardware
    in it of which the others do not tell: a fit to them would predict it by its start.
    """
    needs = _needs(observations, parameters, hardware)
    errors: dict[str, list[float] | None] = {}
    for run in dict.fromkeys(observation.run for observation in observations):
        others = [observation for observation in observations if observation.run != run]
        left_out = [observation for observation in observations if observation.run == run]
        told = {name for observation in others for name in needs[observation.group]}
        for group, of_group in (
            fit(others, parameters, hardware).errors(left_out).items() if others else ()
        ):
            errors[group] = of_group if needs[group] <= told else None
    return errors


def _needs(
    observations: Sequence[Observation], parameters: Sequence[Parameter], hardware: Hardware
) -> dict[str, set[str]]:
    """Numbers of the hardware that the times of each group depend on."""

    def predicted(numbers: Floats) -> list[float]:
        candidate = _of(parameters, numbers, hardware)
        return [
            observation.predict(candidate.hardware, candidate.values)
            for observation in observations
        ]

    start = np.array([p.start for p in parameters])
    usual = predicted(start)
    needs: dict[str, set[str]] = {observation.group: set() for observation in observations}
    for place, parameter in enumerate(parameters):
        if parameter.name not in Hardware.model_fields:
            continue
        for end in (parameter.low, parameter.high):
            numbers = start.copy()
            numbers[place] = end
            for observation, before, after in zip(
                observations, usual, predicted(numbers), strict=True
            ):
                if before != after:
                    needs[observation.group].add(parameter.name)
    return needs
