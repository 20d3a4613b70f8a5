"""Oracle of modeled times: they follow from the cost model and the contents of passes.

The settings have the model's constants, `batch` what each pass computes, `transfers` what is
copied. Only one thing is taken from the recorded times: in how many stretches of host blocks
a coalesced copy ran, which no table has. Some number of them must give its seconds.
"""

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from kvscope.api.oracles import oracle, run_tables, virtual
from kvscope.api.runs import planned
from kvscope.api.tables import evidence, runfile
from kvscope_kernels import kv_events
from kvscope_kernels.collect.flushes import read_flushes
from kvscope_model.arraytypes import Bools, Floats, Ints
from kvscope_model.device import Modeled
from kvscope_model.hardware.overflow_cost import OverflowCost
from kvscope_model.runs.loads import loads_of
from kvscope_model.runs.moves import Moves, save_s_of


def is_modeled(run: run_tables.RunTables) -> bool:
    """True if the settings are of the device that `plan.hardware` models."""
    return run.section("device").get("name") == "modeled"


def cost_of(run: run_tables.RunTables) -> OverflowCost:
    """Costs of passes and copies by the settings."""
    experiment = planned.experiment_of(run.records)
    device = experiment.device
    assert isinstance(device, Modeled)
    return device.cost(device.numbers, experiment)


def modeled_kernel_wrong(run: run_tables.RunTables) -> oracle.Violations:
    """The kernels of a modeled layer begin and end at the times that the cost model gives."""
    passes, begins_ns = cost_of(run).passes, _layers_ns(run)
    wrong, first = 0, ""
    for flush in read_flushes(run.records.directory / runfile.KERNEL_EVENTS):
        rows = zip(flush.scheduled.tolist(), flush.context.tolist(), strict=True)
        layer = passes.layer_cost(rows)
        write_s = layer.write_start_s, layer.write_s
        due_s = {kv_events.WRITE: write_s, kv_events.ATTENTION: (sum(write_s), layer.attention_s)}
        layer_ns = begins_ns.get((flush.repeat, flush.step, flush.layer))
        for kernel in flush.kernels:
            begin, end = kernel.start_ticks or 0, kernel.end_ticks or 0
            after_s = (flush.origin_ticks + begin - (layer_ns or 0)) * run_tables.NANOSECONDS
            found_s = after_s, (end - begin) * run_tables.NANOSECONDS
            apart_s = max(
                abs(seconds - expected_s)
                for seconds, expected_s in zip(found_s, due_s[kernel.name], strict=True)
            )
            if layer_ns is None or apart_s > virtual.TOLERANCE_S:
                words = (
                    "{} begins {:.9f} s after its layer and takes {:.9f} s, expected {:.9f}, {:.9f}"
                )
                said = words.format(kernel.name, *found_s, *due_s[kernel.name])
                wrong, first = wrong + 1, first or f"{flush.where}: {said}"
    return oracle.Violations(wrong, first)


def _layers_ns(run: run_tables.RunTables) -> dict[tuple[int, int, int], int]:
    """Start of each recorded layer, by repeat, step and layer, on the clock of the events."""
    origins = {repeat.repeat: repeat.start_ns for repeat in run.record.clock.repeats}
    rows = run.records.layers[["repeat", "step", "layer", "start_s"]]
    return {
        (repeat, step, layer): origins[repeat] + round(start_s / run_tables.NANOSECONDS)
        for repeat, step, layer, start_s in rows.itertuples(index=False, name=None)
    }


def modeled_time_wrong(run: run_tables.RunTables) -> oracle.Violations:
    """The times of a modeled run equal those that the cost model gives for its settings and
    batches.

    These are the times of passes, copies, rebuilds, saves and traced layers, and of the host
    between passes. A request that arrives when no request runs begins a pass at once.
    """
    cost = cost_of(run)
    violations = [virtual.repeats_apart(run, cost.hardware.between_passes_s)]
    for number in run.repeats:
        violations += ModeledRepeat(run, number, cost).violations()
    return run_tables.combine(*violations)


class ModeledRepeat:
    """One repeat: its passes, the copies of preempted requests, and what both must take.

    `at` is the pass of each copy, `moved_s` what the device moves before each pass, which begins at
    `moves_s`, once the link to the host is free.
    """

    def __init__(self, run: run_tables.RunTables, number: int, cost: OverflowCost) -> None:
        self.repeat, self.cost, self.tracing = run.repeats[number], cost, run.section("tracing")
        passes = run.steps[run.steps["repeat"] == number]
        self.steps, self.ended = passes.reset_index(drop=True), run.count_ended[passes.index]
        self.rows = self.repeat.moves.reset_index(drop=True)
        self.moves = Moves.recorded(self.repeat, cost)
        self.seconds = self.moves.seconds(cost)
        self.at = np.searchsorted(self.steps["step"], self.rows["step"])
        self.each_s = self.seconds.copied_s + self.seconds.rebuilt_s
        self.moved_s = np.bincount(self.at, self.each_s, len(self.steps))
        self.begin_s = (self.steps["start_s"] + self.steps["schedule_s"]).to_numpy(float)
        waits = np.bincount(self.at, self.moves.bytes, len(self.steps)) > 0
        free_s = self._link_free_s()
        self.moves_s = np.where(waits, np.maximum(self.begin_s, free_s), self.begin_s)

    def violations(self) -> Iterator[oracle.Violations]:
        """The violations of each kind of time, one after another."""
        yield self._passes()
        yield self._gaps()
        yield self._copies()
        yield self._jobs()
        yield self._saves()
        yield self._layers()
        yield self._scheduling()

    def _link_free_s(self) -> Floats:
        """Time at which the saves of earlier passes have crossed the link, for each pass.

        The host waits for copies to pageable memory itself.
        """
        free_from_s = np.zeros(len(self.steps))
        if self.cost.memory == "pageable" or not self.seconds.saved_s.any():
            return free_from_s
        ends_s, free_s = self.begin_s + self.steps["forward_s"].to_numpy(float), 0.0
        for place, saved_s in enumerate(self.seconds.saved_s):
            free_from_s[place] = free_s
            if saved_s:
                free_s = max(free_s, ends_s[place]) + saved_s
        return free_from_s

    def _passes(self) -> oracle.Violations:
        loads = loads_of(self.steps, self.repeat.batch)
        due_s = self.moves_s - self.begin_s + self.moved_s + self.seconds.gathered_s
        due_s = due_s + self.cost.passes.passes_s(loads) + self._offloaded_s()
        if self.cost.memory == "pageable":
            due_s = due_s + self.seconds.saved_s
        wrong = virtual.differs(self.steps["forward_s"], due_s) | virtual.differs(
            self.steps["duration_s"], due_s
        )
        return virtual.wrong_time(self.steps, wrong, "duration_s", due_s)

    def _offloaded_s(self) -> Floats:
        """Added seconds of each pass for jobs of vLLM's offloading.

        A host that copies by itself does so between its passes; otherwise the pass waits for the
        stores whose blocks it gives away.
        """
        jobs, count = self.repeat.jobs, len(self.steps)
        if jobs.empty:
            return np.zeros(count)
        if not self.cost.passes.is_cpu:
            awaited = jobs.groupby("awaited_step")["end_s"].max().reindex(self.steps["step"])
            ends_s = np.fmax(awaited.to_numpy(float), self.begin_s)
            return np.asarray(ends_s - self.begin_s, np.float64)
        ends_s = self.begin_s + self.steps["forward_s"].to_numpy(float) + virtual.TOLERANCE_S
        pass_index = np.searchsorted(ends_s, jobs["end_s"].to_numpy(float))
        begins_s = np.append(self.begin_s, np.inf)[pass_index] - virtual.TOLERANCE_S
        within = (jobs["start_s"] >= begins_s).to_numpy()
        spent_s = np.bincount(pass_index[within], jobs["copy_s"].to_numpy(float)[within], count)
        return np.asarray(spent_s, np.float64)

    def _gaps(self) -> oracle.Violations:
        """Gaps between passes, or until a request arrives if no request is there.

        Then the requests may wait for jobs of vLLM's offloading, until one has ended.
        """
        arrivals = np.sort(self.repeat.requests["arrival_s"].to_numpy(float))
        before_s = self.steps["before_s"].to_numpy(float)
        ready_s = before_s + np.where(np.arange(len(before_s)), self.between_s, 0.0)
        arrived = np.searchsorted(arrivals, ready_s + run_tables.NANOSECONDS, side="right")
        following = np.append(arrivals, np.nan)[arrived]
        due_s = np.where(arrived > self.ended, ready_s, following)
        waited_s = self.steps["load_wait_s"].astype(float).fillna(0.0).to_numpy()
        due_s = due_s + waited_s
        wrong = virtual.differs(self.steps["start_s"], due_s)
        for place in np.flatnonzero(waited_s > 0):
            wrong[place] |= not self._after_job(due_s[place], waited_s[place])
        return virtual.wrong_time(self.steps, wrong, "start_s", due_s)

    def _after_job(self, start_s: float, waited_s: float) -> bool:
        """True if a pass begins a whole number of the host's turns after a job has ended.

        Or after the wait began: the host learns of jobs that ended during a pass with the next.
        """
        ends_s = self.repeat.jobs["end_s"].to_numpy(float)
        begin_s = start_s - waited_s
        after_s = start_s - np.append(begin_s, ends_s[(ends_s > begin_s) & (ends_s < start_s)])
        turns = np.rint(after_s / self.between_s)
        whole = np.abs(after_s - turns * self.between_s) <= virtual.TOLERANCE_S
        return bool((whole & (turns >= 1)).any())

    def _jobs(self) -> oracle.Violations:
        """Jobs of vLLM's offloading, each behind the one before it in its direction."""
        if self.repeat.jobs.empty:
            return oracle.NONE
        rows = self.repeat.jobs.sort_values("job")
        copied = zip(rows["blocks"].tolist(), rows["direction"].tolist(), strict=True)
        due_s = np.array([self.cost.offloading_s(*job) for job in copied], np.float64)
        wrong = virtual.differs(rows["copy_s"], due_s)
        wrong |= virtual.differs(rows["end_s"] - rows["start_s"], due_s)
        return virtual.wrong_time(rows.reset_index(drop=True), wrong, "copy_s", due_s)

    @property
    def between_s(self) -> float:
        """The host's time between two passes."""
        return self.cost.hardware.between_passes_s

    def _copies(self) -> oracle.Violations:
        """Copies one after another, of as many stretches as their blocks may lie in."""
        rows, seconds = self.rows, self.seconds
        if rows.empty:
            return oracle.NONE
        order = np.argsort(rows["start_s"].to_numpy(float), kind="stable")
        spent_s = pd.Series(self.each_s)[order].groupby(self.at[order]).cumsum().sort_index()
        starts_s = self.moves_s[self.at] + spent_s.to_numpy(float) - self.each_s
        wrong = virtual.differs(rows["copy_s"], seconds.copied_s)
        wrong |= virtual.differs(rows["rebuild_s"].fillna(0.0), seconds.rebuilt_s)
        wrong |= virtual.differs(rows["start_s"], starts_s)
        wrong |= virtual.differs(rows["end_s"], starts_s + seconds.issued_s)
        wrong |= self._stretches_impossible()
        return virtual.wrong_time(rows, wrong, "copy_s", seconds.copied_s)

    def _stretches_impossible(self) -> Bools:
        """Mask of the rows whose recorded seconds fit no number of copies."""
        rebuilt, cost = self.moves.rebuilt_tokens > 0, self.cost
        block_bytes = np.where(rebuilt, cost.activation_block_bytes, cost.block_bytes)
        blocks, pieces = self.moves.bytes // block_bytes, np.where(rebuilt, 1, cost.pieces)
        stretches, rest = np.divmod(self.moves.copies, pieces)
        least: Ints = np.minimum(blocks, 1) if cost.coalesced else blocks
        impossible: Bools = (rest > 0) | (stretches < least) | (stretches > blocks)
        return impossible

    def _saves(self) -> oracle.Violations:
        saved, due_s = self.moves.saved_bytes > 0, self.seconds.saved_s
        if not saved.any():
            return oracle.NONE
        steps = self.steps.assign(copy_s=save_s_of(self.repeat))
        wrong = virtual.differs(steps["copy_s"], due_s)
        tokens = self.moves.saved_bytes // self.cost.model.activation_bytes_per_token
        wrong |= self.moves.save_copies > tokens
        return virtual.wrong_time(steps, wrong & saved, "copy_s", due_s)

    def _scheduling(self) -> oracle.Violations:
        """Scheduling takes no time: requests are preempted as their pass begins."""
        rows = self.repeat.preemptions.reset_index(drop=True)
        pass_index = np.searchsorted(self.steps["step"], rows["step"])
        begins_s = self.steps["start_s"].to_numpy(float)[pass_index]
        waited_s = self.steps["load_wait_s"].astype(float).fillna(0.0).to_numpy()[pass_index]
        late = virtual.differs(rows["time_s"], begins_s) & virtual.differs(
            rows["time_s"], begins_s - waited_s
        )
        meanwhile = (rows["time_s"] < begins_s) & (rows["time_s"] > begins_s - waited_s)
        late &= ~(meanwhile & (rows["event"] == "preempt")).to_numpy()
        return run_tables.combine(
            virtual.takes_no_scheduling(self.steps),
            virtual.wrong_time(rows, late, "time_s", begins_s),
        )

    def _layers(self) -> oracle.Violations:
        """Layers of a traced pass: of equal length, the first after the moves."""
        layers = self.repeat.layers.reset_index(drop=True)
        if layers.empty:
            return self._untimed()
        traced = np.unique(layers["step"])
        batch = self.repeat.batch[self.repeat.batch["step"].isin(traced)]
        rows = batch.groupby("step")[["scheduled_tokens", "context_tokens"]]
        layer_cost = self.cost.passes.layer_cost
        length = {
            step: layer_cost(of_pass.itertuples(index=False, name=None)).seconds
            for step, of_pass in rows
        }
        each_s = np.asarray(layers["step"].map(pd.Series(length, dtype=float)), np.float64)
        begin_s = (self.moves_s + self.moved_s)[np.searchsorted(self.steps["step"], layers["step"])]
        wrong = virtual.differs(layers["start_s"], begin_s + layers["layer"] * each_s)
        wrong |= virtual.differs(layers["duration_s"], each_s)
        return run_tables.combine(
            virtual.wrong_time(layers, wrong, "duration_s", each_s), self._untimed()
        )

    def _untimed(self) -> oracle.Violations:
        """Traced passes without the times of all their layers."""
        asked, steps = self.tracing, self.steps["step"].to_numpy()
        traced = steps % asked.get("step_stride", 1) == 0
        traced_layers = traced * (asked.get("name") != "none") * self.cost.model.layers
        layers = self.repeat.layers
        timed = Counter(step for step, _ in {*zip(layers["step"], layers["layer"], strict=True)})
        timed_layers = np.array([timed[step] for step in steps.tolist()])
        words = "{found} layers are timed, {due} traced"
        return run_tables.bad_rows(
            self.steps,
            timed_layers != traced_layers,
            lambda r: words.format_map(r),
            found=timed_layers,
            due=traced_layers,
        )


def _need(
    words: str, also: Callable[[run_tables.RunTables], bool] = lambda _: True
) -> oracle.Need[run_tables.RunTables]:
    """A need of a modeled run with all its passes and their times, and of what only some have."""
    return oracle.Need(
        words,
        lambda run: (
            run.evidence.issuperset((evidence.PASSES, evidence.CLOCK))
            and is_modeled(run)
            and also(run)
        ),
    )


def _has_events(run: run_tables.RunTables) -> bool:
    return runfile.KERNEL_EVENTS in run.record.files


# After the oracle of the constant times of `dry`.
TIMES = oracle.Oracle(modeled_time_wrong, _need("device modeled"), order=152)
KERNELS = oracle.Oracle(
    modeled_kernel_wrong, _need("KV events of device modeled", _has_events), order=154
)
