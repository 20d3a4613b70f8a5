"""The tables of metrics, of a run and of a study."""

from kvscope.tables.column import BOOL, F64, I32, TEXT, Table, derived, key
from kvscope.tables.columns import REPEAT, SOURCE

METRICS = Table(
    "metrics",
    "one metric of one experiment",
    (
        key("experiment_id", TEXT, "the experiment"),
        key("metric", TEXT, "its name in docs/METRICS.md"),
        derived("value", F64, "point estimate over the repeats; null if not defined"),
        derived("ci_low", F64, "95 % confidence interval, lower end; null below two repeats"),
        derived("ci_high", F64, "95 % confidence interval, upper end"),
        derived("unit", TEXT, "unit of value"),
        derived("repeats_valid", I32, "repeats that entered the estimate"),
        derived("valid", BOOL, "whether the experiment is valid"),
        derived("reasons", TEXT, "names of the reasons why it is not, joined by ';'"),
        SOURCE,
        derived("run_sha256", TEXT, "SHA-256 of the run.json they were computed from"),
    ),
)

REPEAT_METRICS = Table(
    "repeat_metrics",
    "one metric of one repeat that defines it; profiled repeats are left out",
    (
        key("experiment_id", TEXT, "the experiment"),
        REPEAT,
        derived("campaign", TEXT, "campaign that measured it; null outside of campaigns"),
        derived(
            "round", I32, "the campaign's round, or sitting, from 0; null outside of campaigns"
        ),
        derived(
            "place", I32, "place of the repeat in its round, from 0; null outside of campaigns"
        ),
        derived(
            "waiting",
            F64,
            "−log(1 − w), w the share of its time in which the engine was ready without a CPU; "
            "null if not known",
        ),
        key("metric", TEXT, "its name in docs/METRICS.md"),
        derived("value", F64, "the metric of this repeat, as measured"),
        derived("unit", TEXT, "unit of value"),
        SOURCE,
        derived("run_sha256", TEXT, "SHA-256 of the run.json it was computed from"),
    ),
)

COMPARISONS = Table(
    "comparisons",
    "one metric of two experiments of a study that differ in one key",
    (
        key("base", TEXT, "the experiment that the other one is compared with"),
        key("other", TEXT, "the other experiment"),
        key("key", TEXT, "the key in which they differ"),
        key("metric", TEXT, "its name in docs/METRICS.md"),
        derived("ratio", F64, "the metric of other / of base; null where one is not above 0"),
        derived("low", F64, "95 % confidence interval, lower end"),
        derived("high", F64, "95 % confidence interval, upper end; infinite if there is none"),
        derived("rounds", I32, "rounds that the interval is of; 0 where none connect the two"),
        derived("adjusted", BOOL, "whether times are adjusted for waiting"),
        derived(
            "how",
            TEXT,
            "'adjusted' or 'paired' over rounds, 'independent' without common rounds, 'modeled'; "
            "'rehearsed' of two such experiments; else null without a ratio",
        ),
        derived("difference", F64, "the metric of other − of base, in its unit"),
        derived(
            "difference_low", F64, "95 % confidence interval, lower end; null if there is none"
        ),
        derived(
            "difference_high", F64, "95 % confidence interval, upper end; null if there is none"
        ),
    ),
)
