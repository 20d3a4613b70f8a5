"""Columns that several tables have."""

from kvscope.tables.column import I32, TEXT, derived, fact, key

REPEAT = key("repeat", I32, "repeat of the measured part, from 0; warm-up is not recorded")
STEP = key("step", I32, "forward pass within the repeat, from 0")
REQUEST = key("request_id", TEXT, "request, as numbered by the workload from 0")
SOURCE = fact(
    "time_source",
    TEXT,
    "'measured'; 'modeled' by a cost model; 'published' by other authors; 'rehearsed', not "
    "measured, by a CPU in the place of a GPU",
)
SINCE = "seconds since the repeat's start, host monotonic clock"

ATTRIBUTION = (
    derived("repeat", I32, "repeat it belongs to; null outside the measured part"),
    derived("step", I32, "forward pass that launched it; null if none"),
    derived("layer", I32, "transformer block that launched it; null if none"),
)
