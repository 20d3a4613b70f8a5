"""Prints a plan as a table or as JSON."""

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kvscope.base.quantities import plural, rough_duration
from kvscope.plan import batches, together
from kvscope.plan.grid import Plan
from kvscope.plan.needs import GpuNeeds, gib, in_words
from kvscope.plan.resources import machine_gib, minimum_gib
from kvscope.plan.wording import format_value

# What each experiment's run needs, by id: manifest.resources_of.
Needs = Mapping[str, Mapping[str, int]]
MOST_NAMED = 3


class Column(NamedTuple):
    """A column of the table: the bytes of something that an experiment on a GPU needs."""

    title: str
    bytes_of: Callable[[GpuNeeds], int]

    def size(self, needs: GpuNeeds | None) -> int:
        """Bytes; 0 without a GPU."""
        return self.bytes_of(needs) if needs else 0


COLUMNS = (
    Column("GPU", lambda needs: needs.memory.total_bytes),
    Column("host pool", lambda needs: needs.host_pool_bytes),
    Column("events", lambda needs: needs.kv_event_bytes),
)


def as_json(plan: Plan, needs: Needs) -> list[dict[str, Any]]:
    """An object for each experiment: id, label, varied values, resources, resolved experiment.

    Of one on a GPU also `needs`, in bytes (`plan.needs.GpuNeeds`).
    """
    return [
        {
            "id": planned.experiment.id,
            "label": planned.label,
            "varied": planned.varied,
            "resources": dict(needs[planned.experiment.id]),
            **({"needs": of_gpu.as_json()} if (of_gpu := GpuNeeds.of(planned.experiment)) else {}),
            "experiment": planned.experiment.model_dump(exclude_none=True),
        }
        for planned in plan.experiments
    ]


def print_table(plan: Plan, needs: Needs) -> None:
    """Print one line per experiment: id, expected time, what it needs, and its varied values."""
    of_gpu = [GpuNeeds.of(planned.experiment) for planned in plan.experiments]
    columns = [column for column in COLUMNS if any(column.size(gpu) for gpu in of_gpu)]
    rows = [["id", "time", *(column.title for column in columns), *plan.varied_keys]]
    for planned, gpu in zip(plan.experiments, of_gpu, strict=True):
        values = (
            value if isinstance(value, str) else format_value(value)
            for value in planned.varied.values()
        )
        need = needs[planned.experiment.id]
        seconds = need["walltime_s" if len(needs) == 1 else "share_s"]
        sizes = (gib(size) if (size := column.size(gpu)) else "" for column in columns)
        rows.append([planned.experiment.id, rough_duration(seconds), *sizes, *values])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    on_gpu = [gpu for gpu in of_gpu if gpu]
    total = f", {in_words(on_gpu)}" if on_gpu else ""
    print(f"{format_total(plan, needs)}{total}: {plan.title}")


def format_total(plan: Plan, needs: Needs) -> str:
    """'9 experiments on device=cpu, about 2 min, 9 engines side by side in rounds, 4.5 GiB'.

    Of modeled ones: 'about 12 min on one core, 7 min on 2', those of this machine.
    """
    experiments = [planned.experiment for planned in plan.experiments]
    devices = dict.fromkeys(experiment.device.name for experiment in experiments)
    count = plural(len(needs), "experiment")
    length = rough_duration(batches.expected_s([*needs.values()]))
    cores = len(os.sched_getaffinity(0))
    if shared_s := batches.shared_s([*needs.values()], cores):
        length += f" on one core, {rough_duration(shared_s)} on {cores}"
    total = f"{count} on device={','.join(devices)}, about {length}"
    measured = [experiment for experiment in experiments if experiment.device.allocates]
    return f"{total}, {together.design(measured).words}" if len(measured) > 1 else total


def memory_warning(plan: Plan) -> str | None:
    """A warning that names experiments too large for this machine's memory; None if all fit."""
    available = machine_gib()
    minima = {p.experiment.id: minimum_gib(p.experiment) for p in plan.experiments}
    beyond = [f"{i} needs {gib:,.1f} GiB" for i, gib in minima.items() if gib > available]
    if not beyond:
        return None
    more = f", and {len(beyond) - MOST_NAMED} more do" if len(beyond) > MOST_NAMED else ""
    return (
        f"this machine's memory of {available:,.1f} GiB is too little for {len(beyond)} of the "
        f"experiments, which `kvscope run` refuses here: {', '.join(beyond[:MOST_NAMED])}{more}"
    )
