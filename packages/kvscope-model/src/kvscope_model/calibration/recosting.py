"""The records of a modeled run as other numbers of its hardware would have made them.

With all requests there at the start, which passes there are follows from the scheduler alone:
other numbers change their durations and those of copies, and nothing else. What an overflow policy
chose by its predictions stays as it chose it.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from kvscope.api.experiments import Experiment
from kvscope.api.runs import Records, pass_durations
from kvscope_model.arraytypes import Floats
from kvscope_model.device import Modeled
from kvscope_model.hardware.hardware import Hardware
from kvscope_model.hardware.overflow_cost import OverflowCost
from kvscope_model.runs.loads import loads_of
from kvscope_model.runs.moves import Moves, Seconds

SHORT_S = 1e-6  # by which instants of one pass may differ


class Times(NamedTuple):
    """Start of each pass, start of its copies, and its forward time."""

    start_s: Floats
    moves_s: Floats
    forward_s: Floats


class Recosting:
    """Passes of a repeat of a modeled run with other costs; all requests are there at the start."""

    def __init__(self, records: Records, experiment: Experiment) -> None:
        device = experiment.device
        assert isinstance(device, Modeled)
        self._records, self._experiment, self._device = records, experiment, device
        self._steps = records.steps.sort_values("step", ignore_index=True)
        numbers = self._steps["step"]
        # The pass of each copy of a preempted request, and of each preemption.
        self._at = np.searchsorted(numbers, records.moves["step"])
        self._preempted_at = np.searchsorted(numbers, records.preemptions["step"])
        self._moves = Moves.recorded(records, self._cost(device.numbers))
        self._loads = loads_of(self._steps, records.batch)
        self._pass_durations = pass_durations.PassDurations.of(self._steps, records.batch)

    def _cost(self, hardware: Hardware) -> OverflowCost:
        return self._device.cost(hardware, self._experiment)

    def records(self, hardware: Hardware) -> Records:
        """The records with the durations of this hardware.

        `stalled` of passes and `wait_s`, `cost_s` and `predicted_s` of preemptions stay as they
        are.
        """
        steps, cost = self._steps, self._cost(hardware)
        moved = self._moves.seconds(cost)
        times = self._times(cost, moved)
        before_s, recorded_s, forward_s = (
            steps[name].to_numpy(float) for name in ("start_s", "duration_s", "forward_s")
        )
        later_s = times.start_s - before_s
        duration_s = recorded_s - forward_s + times.forward_s
        recosted = steps.assign(
            start_s=times.start_s,
            duration_s=duration_s,
            forward_s=times.forward_s,
        )
        return self._records.variant(
            steps=recosted,
            requests=self._requests(before_s, later_s, later_s + duration_s - recorded_s),
            preemptions=self._preemptions(later_s[self._preempted_at]),
            transfers=self._transfers(moved, times.moves_s[self._at]),
            pass_durations=self._pass_durations.retimed(recosted),
        )

    def _times(self, cost: OverflowCost, moved: Seconds) -> Times:
        """Times of successive passes: moves before each pass, its computation, and its saves.

        What a pass saves crosses the link behind the next ones, and what is moved later waits for
        it. The host waits for copies to pageable memory.
        """
        steps, size = self._steps, len(self._steps)
        recorded_s, duration_s, schedule_s, forward_s = (
            steps[name].to_numpy(float)
            for name in ("start_s", "duration_s", "schedule_s", "forward_s")
        )
        usual_s = self._device.numbers.between_passes_s
        gap_s = np.diff(recorded_s, append=0.0) - duration_s
        rest_s = duration_s - schedule_s - forward_s + gap_s
        rest_s += cost.hardware.between_passes_s - usual_s
        before_s = np.bincount(self._at, moved.copied_s + moved.rebuilt_s, size)
        moves = np.bincount(self._at, self._moves.bytes, size) > 0
        busy_s = cost.passes.passes_s(self._loads) + moved.gathered_s + before_s
        link_s = moved.saved_s
        if cost.memory == "pageable":
            busy_s, link_s = busy_s + link_s, np.zeros(size)
        times = Times(np.zeros(size), np.zeros(size), np.zeros(size))
        now_s = link_free_s = float(recorded_s[0])
        columns = (column.tolist() for column in (schedule_s, moves, busy_s, link_s, rest_s))
        for place, (schedule, waits, busy, link, rest) in enumerate(zip(*columns, strict=True)):
            begun_s = now_s + schedule
            moves_s = max(begun_s, link_free_s) if waits else begun_s
            end_s = moves_s + busy
            times.start_s[place], times.moves_s[place] = now_s, moves_s
            times.forward_s[place] = end_s - begun_s
            if link:
                link_free_s = max(end_s, link_free_s) + link
            now_s = end_s + rest
        return times

    def _requests(self, start_s: Floats, later_s: Floats, ends_later_s: Floats) -> pd.DataFrame:
        """Requests begin with a pass; they get their first token and end where a pass ends."""
        requests = self._records.requests
        begun_s = requests["first_scheduled_s"].to_numpy(float)
        pass_index = np.searchsorted(start_s - SHORT_S, begun_s, side="right") - 1
        moved: dict[str, Any] = {"first_scheduled_s": begun_s + later_s[pass_index]}
        for name in ("first_token_s", "finished_s"):
            ended_s = requests[name].to_numpy(float)
            pass_index = np.searchsorted(start_s + SHORT_S, ended_s) - 1
            moved[name] = ended_s + ends_later_s[pass_index]
        return requests.assign(**moved)

    def _preemptions(self, later_s: Floats) -> pd.DataFrame:
        rows = self._records.preemptions
        return rows.assign(time_s=rows["time_s"].to_numpy(float) + later_s)

    def _transfers(self, moved: Seconds, moves_s: Floats) -> pd.DataFrame:
        """`moves_s` is when the first copy of each row's pass begins; one follows the other.

        What passes save begins when it began: nothing is computed from that.
        """
        rows, saved = self._records.moves, self._records.saved
        spent_s = pd.Series(moved.copied_s + moved.rebuilt_s)
        order = np.argsort(rows["start_s"].to_numpy(float), kind="stable")
        before_s = spent_s[order].groupby(self._at[order]).cumsum().sort_index() - spent_s
        begun_s = moves_s + before_s.to_numpy(float)
        recosted = rows.assign(
            start_s=begun_s,
            end_s=begun_s + moved.issued_s,
            copy_s=moved.copied_s,
            rebuild_s=np.where(rows["rebuild_s"].notna(), moved.rebuilt_s, np.nan),
        )
        saved_s = moved.saved_s[np.searchsorted(self._steps["step"], saved["step"])]
        return pd.concat([recosted, saved.assign(copy_s=saved_s)]).sort_index()
