"""Conversion of kernel clock ticks to ns since the run's start on the host's monotonic clock.

`docs/KV_EVENTS.md` describes the model. Ticks may reach 2^63, where a double resolves only
hundreds of ticks, so origins are subtracted as integers before any multiplication.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvscope.api.errors import BadInput
from kvscope.api.files import limits, reading
from kvscope.api.settings import runschema
from kvscope.api.tables import runfile
from kvscope_kernels import bounds, kv_events
from kvscope_kernels.arraytypes import Int64s
from kvscope_kernels.collect.flushes import Kernel


@dataclass(frozen=True)
class EventClock:
    """Host time is piecewise linear in ticks, through readings of both clocks taken together.

    `ticks` (relative to `origin`) and `host_ns` are those readings in order, `slopes` the ns per
    tick between one and the next; beyond the ends the nearest slope goes on. `uncertainty_ns` is
    the largest of the readings': how far apart the two clocks may have been read.
    """

    origin: int
    ticks: Int64s
    host_ns: Int64s
    slopes: npt.NDArray[np.float64]
    uncertainty_ns: int
    resolution_ns: float = 0.0  # the step between two readings; 0 if it was not measured
    virtual: bool = False  # events take modeled time only, and recording them none
    source: Path = Path(runfile.RUN_FILE)  # where the readings are from

    @classmethod
    def of_run(cls, tracing: runschema.TracingRecord | None, run_json: Path) -> "EventClock":
        """The clock of a traced run. Raises BadInput if run.json lacks valid readings."""
        clock = tracing.clock if tracing else None
        readings, apart = _readings(clock.samples) if clock else ({}, [])
        if not clock or clock.ns_per_tick is None or not readings:
            raise BadInput(
                f"{run_json}: tracing.clock does not hold ns_per_tick and samples of ticks, "
                "host_ns and uncertainty_ns, so the times of KV events are unknown"
            )
        ns_per_tick, resolution_ns, uncertainty = clock.ns_per_tick, clock.resolution_ns, max(apart)
        ticks, host_ns = (list(ends) for ends in zip(*sorted(readings.items()), strict=True))
        _check_readings(run_json, ticks, host_ns, uncertainty)
        origin = ticks[0]
        ticks = [tick - origin for tick in ticks]
        slopes = np.diff(host_ns) / np.diff(ticks) if len(ticks) > 1 else np.array([ns_per_tick])
        if not (np.all((slopes > 0) & (slopes < np.inf)) and ns_per_tick > 0 <= resolution_ns):
            raise BadInput(
                f"{run_json}: tracing.clock has {slopes.min():g} ns a tick between its samples, "
                f"ns_per_tick {ns_per_tick:g} and resolution_ns {resolution_ns:g}, where all "
                "must be positive"
            )
        return cls(
            origin,
            np.array(ticks, np.int64),
            np.array(host_ns, np.int64),
            slopes,
            uncertainty,
            resolution_ns,
            clock.name == kv_events.VIRTUAL_CLOCK,
            run_json,
        )

    def ns(self, ticks: Int64s, since: int = 0) -> Int64s:
        """Convert ticks since the instant `since` to host ns.

        Raises BadInput if one is further from the clock's readings than bounds.FARTHEST_EVENT_NS.
        """
        if not len(ticks):
            return ticks
        shift = since - self.origin
        first, last = int(ticks.min()) + shift, int(ticks.max()) + shift
        reach = int(bounds.FARTHEST_EVENT_NS / max(self.slopes.max(), 1.0))
        if not -reach <= first <= last <= reach:
            far = first if first < -reach else last
            raise BadInput(
                f"{self.source}: tracing.clock has no reading within 190 years of the KV events at "
                f"tick {far + self.origin}; the clock or {runfile.KERNEL_EVENTS} is of another run"
            )
        relative = ticks + shift
        piece = self._piece(relative, first, last)
        into = (relative - self.ticks[piece]) * self.slopes[piece]
        return self.host_ns[piece] + np.rint(into).astype(np.int64)

    def interval_ns(self, kernel: Kernel, since: int) -> tuple[int, int] | None:
        """Start and end of a kernel, from ticks since the instant `since`; None if unknown."""
        if kernel.start_ticks is None or kernel.end_ticks is None:
            return None
        ticks = np.array([kernel.start_ticks, kernel.end_ticks], np.int64)
        start, end = self.ns(ticks, since).tolist()
        return start, end

    def _piece(self, relative: Int64s, first: int, last: int) -> npt.NDArray[np.intp] | np.intp:
        """The piece each instant lies in; as one number if all share it, as they mostly do."""
        ends = self.ticks[1:-1]
        first_piece, last_piece = (
            np.searchsorted(ends, end, side="right") for end in (first, last)
        )
        return (
            first_piece
            if first_piece == last_piece
            else np.searchsorted(ends, relative, side="right")
        )


def _readings(samples: Sequence[runschema.ClockSampleRecord]) -> tuple[dict[int, int], list[int]]:
    """The host's ns by ticks, and the uncertainties; empty if a sample lacks one of them."""
    readings, uncertainties = dict[int, int](), list[int]()
    for sample in samples:
        if sample.ticks is None or sample.host_ns is None or sample.uncertainty_ns is None:
            return {}, []
        readings[int(sample.ticks)] = int(sample.host_ns)
        uncertainties.append(int(sample.uncertainty_ns))
    return readings, uncertainties


def _check_readings(run_json: Path, ticks: list[int], host_ns: list[int], uncertainty: int) -> None:
    """BadInput if readings are further apart than a run lasts, or no 64 bits hold them."""
    for name, value, most in (
        ("ticks", max(map(abs, ticks)), 2**63 - 1),
        ("ticks", ticks[-1] - ticks[0], limits.LONGEST_RUN_NS),
        ("host_ns", max(map(abs, host_ns)), limits.LONGEST_RUN_NS),
        ("uncertainty_ns", abs(uncertainty), limits.LONGEST_RUN_NS),
    ):
        if value > most:
            raise BadInput(
                f"{run_json}: the {name} of tracing.clock.samples reach "
                f"{reading.short_repr(value)}, where {most} at most is expected"
            )


def timer_ns(values: Int64s, segment: Int64s, pairs: dict[str, Int64s]) -> Int64s:
    """A GPU's `clock64` readings as ns of its global timer, by each thread block's own line.

    An SM's clock and the timer are read together at a thread block's start and end; `pairs` has
    start_clock, end_clock, start_timer and end_timer of each segment, and `segment` says which
    one each value lies in. What a thread block reads between its ends stays between them.
    """
    clocks = np.maximum(pairs["end_clock"] - pairs["start_clock"], 1)
    slopes = (pairs["end_timer"] - pairs["start_timer"]) / clocks
    into = (values - pairs["start_clock"][segment]) * slopes[segment]
    far = float(bounds.TICKS[1])  # beyond what an EventClock reaches, which then says so
    ns: Int64s = pairs["start_timer"][segment] + np.rint(into.clip(-far, far)).astype(np.int64)
    return ns
