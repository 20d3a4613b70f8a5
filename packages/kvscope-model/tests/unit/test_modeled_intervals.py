"""Metrics that have an interval from the uncertainty of a modeled device's constants."""

from kvscope.metrics.measure import is_of_time
from kvscope.metrics.registry import all_metrics

# Throughputs, means over requests and costs of overflow; not percentiles and counts.
EXPECTED = {
    *("makespan_s", "ttft_mean_s", "latency_mean_s"),
    *(
        f"{part}throughput_tokens_per_s"
        for part in ("", "output_", "prefill_", "decode_", "mixed_")
    ),
    "throughput_without_stalls_tokens_per_s",
    *(f"resume_overhead_{kind}_s" for kind in ("gross", "as_published", "net")),
    *("swap_out_s", "swap_in_s", "rebuild_s", "save_s"),
}


def test_throughputs_means_and_costs_of_overflow_have_it():
    own = {metric.name for metric in all_metrics() if metric.modeled_interval}
    assert own == EXPECTED


def test_it_is_of_times_alone():
    assert all(is_of_time(metric.unit) for metric in all_metrics() if metric.modeled_interval)
