"""Resolution of this machine: one experiment given twice, measured in rounds for a while.

Two engines of one experiment differ by nothing but noise, so the interval of the ratio of their
times is what a comparison of two experiments would have here and now.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvscope.base import rounds
from kvscope.base.errors import KvscopeError
from kvscope.base.files import make_directory, write_text
from kvscope.base.machine import load_1min
from kvscope.base.quantities import rough_duration
from kvscope.base.scratch import scratch_directory
from kvscope.base.statistics import Interval
from kvscope.engine.devices.platform import platform_of
from kvscope.plan.experiment import Experiment, dump
from kvscope.plan.grid import expand
from kvscope.run.engines import Zygote
from kvscope.run.environment import measured_environment
from kvscope.run.requirements import require_vllm
from kvscope.run.rounds import Group, Member, hold_locks
from kvscope.tables.runfile import EXPERIMENT_FILE

# A cache that overflows, in a repeat of about a second: short enough for many rounds in a minute.
OVERRIDES = ("workload=fixed", "workload.num_requests=12", "cache.blocks=48", "profiler=none")
ONE, OTHER = "one", "other"
LEAST_ROUNDS = 5
WANTED = (0.05, 0.02, 0.01)  # half widths whose needed rounds are printed


@dataclass(frozen=True)
class Noise:
    """Ratio of two equal engines' times, with the number of rounds and the duration."""

    ratio: Interval
    rounds: int
    seconds: float
    variation: float  # standard deviation of one engine's log time from repeat to repeat
    waiting: float  # mean share of the time in which an engine was ready without a CPU
    load: float | None

    @property
    def resolution(self) -> float:
        """Half the width of the interval, as a share: smaller differences are not seen."""
        return self.ratio.half_width_share

    def rounds_for(self, share: float) -> int:
        """Rounds after which the interval would be about this narrow, if nothing changes."""
        return max(LEAST_ROUNDS, math.ceil(self.rounds * (self.resolution / share) ** 2))


def measure_noise(
    config: Path, seconds: float, tell: Callable[[str], None] = lambda words: None
) -> Noise:
    """Serve rounds of two equal engines for so long, at least LEAST_ROUNDS rounds.

    `tell` gets a line of progress after each round. BadInput if vLLM is not installed.
    """
    require_vllm()
    (planned,) = expand(None, [*OVERRIDES], config).experiments
    with scratch_directory() as place:
        members = {name: _member(planned.experiment, place / name) for name in (ONE, OTHER)}
        tell("importing vLLM, starting two engines")
        environment = measured_environment(planned.experiment) | {"TMPDIR": str(place)}
        modules = platform_of(planned.experiment).worker_modules
        with (
            Zygote(environment, modules, place / "zygote.log") as zygote,
            hold_locks(members.values()),
            Group(members, zygote) as group,
        ):
            began, number = time.monotonic(), 0
            while group.active and (number < LEAST_ROUNDS or time.monotonic() - began < seconds):
                group.serve_round(number)
                number += 1
                took = time.monotonic() - began
                noise = _noise(group.measured(), number, took)
                remaining_s = max(0.0, seconds - took)
                tell(f"round {number}, {_percent(noise.resolution)}, {remaining_s:.0f} s left")
            group.finish()
        if group.failed:
            raise KvscopeError("; ".join(map(str, group.failed.values())))
    return noise


def _member(experiment: Experiment, directory: Path) -> Member:
    make_directory(directory)
    write_text(directory / EXPERIMENT_FILE, dump(experiment))
    return Member(experiment, directory)


def _noise(measured: rounds.Rounds, number: int, took: float) -> Noise:
    logs = [
        math.log(t) for n, t in zip(measured.experiment, measured.time, strict=True) if n == ONE
    ]
    variation = float(np.std(logs, ddof=1)) if number > 1 else math.nan
    waited = float(np.mean([-math.expm1(-x) for x in measured.waiting]))
    ratio = measured.ratio(OTHER, ONE)
    return Noise(ratio, number, took, variation, waited, load_1min())


def describe(found: Noise) -> list[str]:
    """The result as lines for the terminal."""
    ratio, load = found.ratio, found.load
    busy = "" if load is None else f", load {load:.1f}"
    has = "has" if ratio.low <= 1 <= ratio.high else "has not, which happens in 1 of 20 cases,"
    lines = [
        f"Two engines of one experiment, {found.rounds} rounds in {found.seconds:.0f} s{busy}:",
        f"  ratio of their times   {ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f}), which "
        f"{has} 1 in it",
        f"  one engine alone       {_percent(found.variation)} from repeat to repeat",
        f"  waiting for a CPU      {found.waiting:.0%} of its time",
        f"Here and now, {found.rounds} rounds show differences of {_percent(found.resolution)[2:]} "
        "and more.",
    ]
    narrower = [share for share in WANTED if share < found.resolution]
    each_s = found.seconds / found.rounds
    for share in narrower[:2]:
        rounds_ = found.rounds_for(share)
        takes = rough_duration(rounds_ * each_s)
        lines.append(
            f"  {_percent(share)} would take about {rounds_} rounds, {takes} for two engines"
        )
    return lines


def _percent(share: float) -> str:
    return "± not known" if math.isnan(share) else f"± {100 * share:.2g} %"
