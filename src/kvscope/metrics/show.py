"""Output of a run's metrics: a table for the terminal, or JSON."""

import math
import textwrap
from collections.abc import Hashable
from typing import Any

import pandas as pd

from kvscope.base.quantities import plural
from kvscope.base.time_sources import NOT_MEASURED, REHEARSED

WIDTH = 80
SIGNIFICANT_DIGITS = 4
# Always 0 in a run without a host pool.
OF_THE_HOST_POOL = ("swap_out_s", "swap_in_s", "swapped_bytes", "recompute_fallbacks")
# Display units by the unit of the metric, largest first.
SCALES = {
    "s": (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)),
    "B": (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)),
    "share": (("%", 1e-2),),
}


def as_json(frame: pd.DataFrame) -> dict[str, Any]:
    """One run's `metrics` table as a JSON object; null for a missing value."""
    first = frame.iloc[0]
    return {
        "experiment_id": first["experiment_id"],
        "valid": bool(first["valid"]),
        "reasons": _reasons(frame),
        "time_source": first["time_source"],
        "metrics": {
            row["metric"]: {
                "value": _or_null(row["value"]),
                "ci_low": _or_null(row["ci_low"]),
                "ci_high": _or_null(row["ci_high"]),
                "unit": row["unit"],
                "repeats_valid": int(row["repeats_valid"]),
            }
            for row in frame.to_dict("records")
        },
    }


def print_table(frame: pd.DataFrame) -> None:
    """Print the applicable metrics of one run within 80 columns: name, mean ± half width, unit."""
    first = frame.iloc[0]
    repeats = int(frame["repeats_valid"].max())
    verdict = "valid" if first["valid"] else f"not valid: {', '.join(_reasons(frame))}"
    print(first["experiment_id"])
    source = NOT_MEASURED if first["time_source"] == REHEARSED else first["time_source"]
    print(textwrap.fill(f"{source}, {plural(repeats, 'repeat')}, {verdict}", WIDTH))
    rows = [("metric", "mean", "95 %", "")]
    rows += [_cells(row, repeats) for row in _drop_inapplicable(frame).to_dict("records")]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, value, half, unit in rows:
        sign = "±" if half else " "
        print(
            f"{name:<{widths[0]}}  {value:>{widths[1]}} {sign} {half:<{widths[2]}}  {unit}".rstrip()
        )


def _drop_inapplicable(frame: pd.DataFrame) -> pd.DataFrame:
    pool = frame.loc[frame["metric"] == "host_block_utilization_peak", "value"].notna().any()
    absent = ~frame["value"].map(math.isfinite)
    if not pool:
        absent |= frame["metric"].isin(OF_THE_HOST_POOL) & (frame["value"] == 0)
    return frame[~absent]


def _cells(row: dict[Hashable, Any], repeats: int) -> tuple[str, str, str, str]:
    """Name, value, half of the interval's width, and unit; with the repeats if fewer than all."""
    unit, size = _scale(row["value"], row["unit"])
    value, half = row["value"] / size, (row["ci_high"] - row["ci_low"]) / 2 / size
    decimals = _decimals(value, half)
    count = int(row["repeats_valid"])
    return (
        row["metric"],
        f"{value:,.{decimals}f}",
        "" if math.isnan(half) else f"{half:,.{decimals}f}",
        unit if count == repeats else f"{unit} ({plural(count, 'repeat')})",
    )


def _scale(value: float, unit: str) -> tuple[str, float]:
    """The largest display unit in which the value is at least 1, and its size in the metric's unit.

    Smaller values get the smallest unit, and 0 the metric's own.
    """
    scales = SCALES.get(unit, ((unit, 1.0),))
    if not value:
        return min(scales, key=lambda scale: abs(1 - scale[1]))
    return next((scale for scale in scales if abs(value) >= scale[1]), scales[-1])


def _decimals(value: float, half: float) -> int:
    """Decimals for four significant digits; 0 if the value and its interval are integers."""
    if value == round(value) and (math.isnan(half) or half == round(half)):
        return 0
    digits_before = math.floor(math.log10(abs(value))) + 1 if value else 1
    return max(0, SIGNIFICANT_DIGITS - digits_before)


def _reasons(frame: pd.DataFrame) -> list[str]:
    return [reason for reason in frame["reasons"].iloc[0].split(";") if reason]


def _or_null(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
