"""Least squares over observed times, with bootstrap intervals and errors of what is left out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from kvscope.api.statistics import statistics
from kvscope_model.arraytypes import Floats
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
    """One time, what the model says of it, and the group that it belongs to.

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
        """By group, predicted over observed seconds less 1."""
        found: dict[str, list[float]] = {}
        for one in observations:
            error = one.predict(self.hardware, self.values) / one.seconds - 1
            found.setdefault(one.group, []).append(error)
        return found


def fit(
    observations: Sequence[Observation], parameters: Sequence[Parameter], hardware: Hardware
) -> Fit:
    """The parameters that minimise the logarithms of predicted over observed seconds.

    What the observations do not tell stays at its start.
    """
    low, high = (np.array([getattr(p, name) for p in parameters]) for name in ("low", "high"))
    start = np.array([p.start for p in parameters])
    counts = {one.group: 0 for one in observations}
    for one in observations:
        counts[one.group] += 1
    weights = np.array([counts[one.group] ** -0.5 for one in observations])

    begun = np.clip(np.log(start / low) / np.log(high / low), 1e-3, 1 - 1e-3)

    def residuals(unit: Floats) -> Floats:
        found = _of(parameters, low * (high / low) ** unit, hardware)
        predicted = [one.predict(found.hardware, found.values) for one in observations]
        observed = [one.seconds for one in observations]
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
    own = {name: value for name, value in values.items() if name in Hardware.model_fields}
    return Fit(values, hardware.model_copy(update=own))


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
    for one in observations:
        groups.setdefault(one.group, []).append(one)
    found = []
    for _ in range(samples):
        drawn = [
            own[index]
            for own in groups.values()
            for index in generator.integers(len(own), size=len(own))
        ]
        found.append(fit(drawn, parameters, hardware).values)
    return found


def intervals(
    values: Values, samples: Sequence[Mapping[str, float]]
) -> dict[str, statistics.Interval]:
    """Interval of 95 % of the samples of each parameter, with its value in it."""
    return {
        name: statistics.bootstrap_interval(value, [one[name] for one in samples])
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
    for run in dict.fromkeys(one.run for one in observations):
        others = [one for one in observations if one.run != run]
        own = [one for one in observations if one.run == run]
        told = {name for one in others for name in needs[one.group]}
        for group, found in fit(others, parameters, hardware).errors(own).items() if others else ():
            errors[group] = found if needs[group] <= told else None
    return errors


def _needs(
    observations: Sequence[Observation], parameters: Sequence[Parameter], hardware: Hardware
) -> dict[str, set[str]]:
    """Numbers of the hardware that the times of each group depend on."""

    def predicted(numbers: Floats) -> list[float]:
        found = _of(parameters, numbers, hardware)
        return [one.predict(found.hardware, found.values) for one in observations]

    start = np.array([p.start for p in parameters])
    usual = predicted(start)
    needs: dict[str, set[str]] = {one.group: set() for one in observations}
    for place, parameter in enumerate(parameters):
        if parameter.name not in Hardware.model_fields:
            continue
        for end in (parameter.low, parameter.high):
            numbers = start.copy()
            numbers[place] = end
            for one, before, after in zip(observations, usual, predicted(numbers), strict=True):
                if before != after:
                    needs[one.group].add(parameter.name)
    return needs
