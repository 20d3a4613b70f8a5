"""A plan, for people and for programs."""

from typing import Any

from kvscope.plan.complaints import shown
from kvscope.plan.grid import Plan


def as_json(plan: Plan) -> list[dict[str, Any]]:
    """One object an experiment: id, label, varied values, and the resolved experiment."""
    return [
        {
            "id": planned.experiment.id,
            "label": planned.label,
            "varied": planned.varied,
            "experiment": planned.experiment.model_dump(exclude_none=True),
        }
        for planned in plan.experiments
    ]


def print_table(plan: Plan) -> None:
    """Print one line an experiment: its id, and the values that set it apart."""
    rows = [["id", *plan.varied_keys]]
    for planned in plan.experiments:
        values = (
            value if isinstance(value, str) else shown(value) for value in planned.varied.values()
        )
        rows.append([planned.experiment.id, *values])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    count = len(plan.experiments)
    print(f"{count} experiment{'s' if count > 1 else ''}: {plan.title}")
