"""Tracing of KV events: the kernels of each device, and the consumers of their events."""

from kvscope.api.tracing import tracing
from kvscope_kernels.planning import events_on_disk

TRACING = tracing.Tracing(
    on_disk=events_on_disk,
    backends={
        "cpu": "kvscope_kernels.engine.cpu.attention.NumbaBackend",
        "cuda": "kvscope_kernels.engine.cuda.attention.CudaBackend",
    },
    tracer="kvscope_kernels.engine.tracers:open_tracer",
    recorder="kvscope_kernels.engine.kernel_events:KernelEvents",
)
