"""The records of a modeled run as other numbers of its hardware would have made them.

With all requests there at the start, which passes there are follows from the scheduler alone:
other numbers change their durations and those of copies, and nothing else.
"""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from kvscope.analyse.records import Records
from kvscope.arraytypes import Floats
from kvscope.plan.devices.modeled import Modeled
from kvscope.plan.experiment import Experiment
from kvscope.plan.hardware.cost import Chunk, copy_s
from kvscope.plan.hardware.hardware import Hardware

DIRECTIONS = {"preempt": "out", "resume": "in"}
SHORT_S = 1e-6  # by which instants of one pass may differ


class Load(NamedTuple):
    """What is in a pass: chunks of prompts, and of requests that decode number and contexts."""

    chunks: tuple[Chunk, ...]
    decodes: int
    context: int
    longest: int


class Recosting:
    """Of one repeat of a modeled run, whose requests are all there at the start."""

    def __init__(self, records: Records, experiment: Experiment) -> None:
        device = experiment.device
        assert isinstance(device, Modeled)
        self._records, self._experiment, self._device = records, experiment, device
        self._steps = records.steps.sort_values("step", ignore_index=True)
        self._base_s = self._passes_s(device.numbers)

    def records(self, hardware: Hardware) -> Records:
        """The records with the durations of this hardware; `wait_s` and `cost_s` stay as they are.

        Copies begin as much later as their pass does, whatever others the pass has before them.
        """
        steps, preemptions = self._steps, self._records.preemptions
        copied_s, issued_s = self._copies_s(hardware)
        longer_s = self._passes_s(hardware) - self._base_s
        more_copies_s = copied_s - self._copied_s
        at = np.searchsorted(steps["step"], preemptions["step"])
        np.add.at(longer_s, at, more_copies_s)
        later_s = np.cumsum(longer_s) - longer_s  # of a pass's start
        start_s, duration_s = (steps[name].to_numpy(float) for name in ("start_s", "duration_s"))
        made = steps.assign(
            start_s=start_s + later_s,
            duration_s=duration_s + longer_s,
            forward_s=steps["forward_s"].to_numpy(float) + longer_s,
        )
        return self._records.variant(
            steps=made,
            requests=self._requests(start_s, later_s, later_s + longer_s),
            preemptions=self._preemptions(copied_s, issued_s, later_s[at]),
        )

    def _requests(self, start_s: Floats, later_s: Floats, ends_later_s: Floats) -> pd.DataFrame:
        """Requests begin with a pass; they get their first token and end where a pass ends."""
        requests = self._records.requests
        begun_s = requests["first_scheduled_s"].to_numpy(float)
        own = np.searchsorted(start_s - SHORT_S, begun_s, side="right") - 1
        moved: dict[str, Any] = {"first_scheduled_s": begun_s + later_s[own]}
        for name in ("first_token_s", "finished_s"):
            ended_s = requests[name].to_numpy(float)
            own = np.searchsorted(start_s + SHORT_S, ended_s) - 1
            moved[name] = ended_s + ends_later_s[own]
        return requests.assign(**moved)

    def _preemptions(self, copied_s: Floats, issued_s: Floats, later_s: Floats) -> pd.DataFrame:
        rows = self._records.preemptions
        start_s = rows["copy_start_s"].to_numpy(float) + later_s
        moved: dict[str, Any] = {"copy_start_s": start_s, "copy_end_s": start_s + issued_s}
        for event, direction in DIRECTIONS.items():
            own = (rows["event"] == event).to_numpy() & rows[f"swap_{direction}_s"].notna()
            moved[f"swap_{direction}_s"] = np.where(own, copied_s, np.nan)
        return rows.assign(time_s=rows["time_s"].to_numpy(float) + later_s, **moved)

    @cached_property
    def _copied_s(self) -> Floats:
        """Seconds of each copy on the device as recorded; 0 without one."""
        rows = self._records.preemptions
        seconds: Floats = rows["swap_out_s"].fillna(rows["swap_in_s"]).fillna(0.0).to_numpy(float)
        return seconds

    def _copies_s(self, hardware: Hardware) -> tuple[Floats, Floats]:
        """Seconds of each row's copy on the device, and issued, as longer or shorter in proportion.

        Copies of equal pieces are proportional exactly; coalesced ones, whose pieces are not
        recorded, as those of whole blocks.
        """
        rows = self._records.preemptions
        issued_s = (rows["copy_end_s"] - rows["copy_start_s"]).fillna(0.0).to_numpy(float)
        if not self._copied_s.any():
            return self._copied_s, issued_s
        ratios = np.array(
            [
                self._ratios(hardware, int(moved), DIRECTIONS[event])
                for moved, event in zip(rows["bytes"], rows["event"], strict=True)
            ]
        )
        return self._copied_s * ratios[:, 0], issued_s * ratios[:, 1]

    def _ratios(self, hardware: Hardware, moved_bytes: int, direction: str) -> tuple[float, float]:
        """By how much a copy takes longer on the device, and issued."""
        if not moved_bytes:
            return 1.0, 1.0
        experiment = self._experiment
        pieces = experiment.cache.pieces(experiment.model.layers)
        copies = moved_bytes // experiment.block_bytes * pieces
        memory = str(getattr(experiment.overflow, "host_memory", "pinned"))
        (now_s, issue_s), (base_s, base_issue_s) = (
            copy_s(one, copies, experiment.block_bytes / pieces, memory, direction)
            for one in (hardware, self._device.numbers)
        )
        return now_s / base_s, issue_s / base_issue_s

    @cached_property
    def _loads(self) -> list[Load]:
        """Of each pass, in order."""
        batch = self._records.batch.sort_values("step", kind="stable")
        tokens, before = (
            batch[name].to_numpy(np.int64) for name in ("scheduled_tokens", "context_tokens")
        )
        decodes = (tokens == 1) & (before > 0)
        steps = self._steps["step"].to_numpy()
        of = np.searchsorted(steps, batch["step"].to_numpy())
        size = len(steps)
        count = np.bincount(of[decodes], minlength=size)
        context = np.bincount(of[decodes], before[decodes] + 1, size).astype(np.int64)
        longest = np.zeros(size, np.int64)
        np.maximum.at(longest, of[decodes], before[decodes] + 1)
        chunks: list[list[Chunk]] = [[] for _ in range(size)]
        for place in np.flatnonzero(~decodes):
            chunks[of[place]].append((int(tokens[place]), int(before[place])))
        columns = zip(chunks, count.tolist(), context.tolist(), longest.tolist(), strict=True)
        return [Load(tuple(parts), *rest) for parts, *rest in columns]

    def _passes_s(self, hardware: Hardware) -> Floats:
        """Seconds of each pass."""
        experiment = self._experiment
        cost = self._device.pass_cost(hardware, experiment.model, experiment.batching.name)
        return np.array([cost.pass_s(*load) for load in self._loads])
