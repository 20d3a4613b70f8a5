"""The tracer of a device whose kernels record KV events."""

from pathlib import Path

from kvscope.api.engines import Platform
from kvscope_kernels.engine.tracer import Tracer


def open_tracer(platform: Platform, directory: Path) -> Tracer:
    """The tracer of an engine on a CPU, a segment for each thread, or on a GPU, for each launch."""
    experiment = platform.experiment
    if experiment.device.name == "cpu":
        import numba

        from kvscope_kernels.engine.cpu.clock import CpuClock
        from kvscope_kernels.engine.cpu.tracer import CpuTracer

        return CpuTracer(experiment, CpuClock(), directory, numba.get_num_threads())
    from kvscope_kernels.engine.cuda.clock import CudaClock
    from kvscope_kernels.engine.cuda.tracer import CudaTracer

    return CudaTracer(experiment, CudaClock(), directory)
