"""The registry of metrics: kvscope's own, in the order of tables, and those of other packages."""

import functools

from kvscope.metrics import cache, overhead, serving, waste
from kvscope.metrics.metric import Metric, plugin_metrics
from kvscope.tables.phases import DECODE, MIXED, PREFILL

OWN: tuple[Metric, ...] = (
    serving.makespan_s,
    serving.throughput_tokens_per_s,
    serving.throughput_without_stalls_tokens_per_s,
    serving.output_throughput_tokens_per_s,
    serving.of_phase(PREFILL, "prefill_tokens", "Prefill throughput"),
    serving.of_phase(DECODE, "decode_tokens", "Decode throughput"),
    serving.of_phase(MIXED, "scheduled_tokens", "Throughput of mixed passes"),
    *serving.distribution(
        *("ttft", "TTFT", serving.time_to_first_token_s),
        modeled_interval=True,
        columns=(120, 130),
        first=True,
    ),
    *serving.distribution(
        "itl", "ITL", serving.inter_token_latency_s, columns=(140, 150), display="ms"
    ),
    *serving.distribution(
        *("tpot", "TPOT", serving.time_per_output_token_s),
        columns=(160, 0),
        first=True,
        display="ms",
        optional=True,
    ),
    *serving.distribution("latency", "Latency", serving.latency_s, modeled_interval=True),
    cache.forward_passes,
    cache.pass_requests_mean,
    cache.kv_block_utilization_mean,
    cache.kv_block_utilization_peak,
    cache.kv_bytes_peak,
    cache.kv_token_utilization_mean,
    cache.kv_byte_utilization_mean,
    cache.kv_padding_mean,
    cache.preempted_bytes_mean,
    cache.preemptions,
    cache.recomputed_tokens,
    cache.lost_tokens,
    cache.prefix_cache_hit_rate,
    cache.own_hit_tokens,
    cache.other_hit_tokens,
    cache.lost_tokens_found_share,
    cache.prefix_cache_evictions,
    cache.most_preemptions,
    cache.preemption_wait_mean_s,
    cache.preemption_wait_longest_s,
    overhead.resume_overhead_gross_s,
    overhead.resume_overhead_as_published_s,
    overhead.resume_overhead_net_s,
    overhead.resume_overhead_net_control_s,
    overhead.resume_overhead_net_uncertainty_s,
    overhead.swap_out_s,
    overhead.swap_in_s,
    overhead.rebuild_s,
    overhead.save_s,
    overhead.swapped_bytes,
    cache.host_block_utilization_peak,
    overhead.recompute_fallbacks,
    *waste.METRICS,
    serving.stalled_passes,
    serving.stall_time_s,
)


@functools.cache
def all_metrics() -> tuple[Metric, ...]:
    """All metrics, in the order of tables; BadInput if a package's cannot be loaded."""
    placed = [(10 * place, metric) for place, metric in enumerate(OWN, 1)]
    placed += [(metric.order, metric) for metric in plugin_metrics()]
    return tuple(metric for _, metric in sorted(placed, key=lambda one: one[0]))


@functools.cache
def metrics_by_name() -> dict[str, Metric]:
    """All metrics by name; BadInput as for `all_metrics`."""
    return {metric.name: metric for metric in all_metrics()}
