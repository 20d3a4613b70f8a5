"""The CUDA backend inside the real vLLM, on the CPU: its kernels run in Triton's interpreter.

    TRITON_INTERPRET=1 python -m cuda_engine_run    (here, in the environment of a measured process)

Prints a JSON object: the output tokens with PyTorch's attention and with ours, and for each pass
what was scheduled (`context` and `new` tokens and `blocks` of each request, by row) and
what the kernels of each layer recorded. `strided` are the passes where every other head is.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from kvscope.engine.devices.cpu import CpuPlatform
from kvscope.engine.devices.platform import platform_of
from kvscope.engine.marks import Marks
from kvscope.engine.recording import PassRecord, Recording
from kvscope.engine.vllm.build import run_engine
from kvscope.plan.grid import expand
from kvscope.run.progress import Progress
from kvscope.run.serving import serve
from kvscope.workload.requests import build
from kvscope_kernels.engine.cuda.attention import CudaBackend
from kvscope_kernels.engine.cuda.clock import CudaClock
from kvscope_kernels.engine.cuda.tracer import CudaTracer

CONFIG = Path(__file__).parents[4] / "config"
SETTINGS = (
    *("model=tiny-gqa", "model.layers=2", "profiler=none", "seed=3"),
    *("workload=uniform", "workload.num_requests=3", "workload.prompt_to_output_ratio=5"),
    *("workload.min_tokens=18", "workload.max_tokens=36", "cache.block_size=12", "cache.blocks=40"),
    *("engine.max_model_len=64", "engine.max_num_batched_tokens=32", "engine.max_num_seqs=4"),
    *("batching=chunked", "batching.chunk_tokens=32"),
)
PLAIN = ("engine.attention=paged",)
TRACED = ("engine.attention=instrumented", "tracing=full")
STRIDED = (
    *("engine.attention=instrumented", "tracing=sampled", "tracing.head_stride=2"),
    *("tracing.step_stride=1", "tracing.layer_stride=1"),
)


class InterpretedBackend(CudaBackend):
    """In the place of vLLM's CPU backend, by its name."""

    name = "CPU_ATTN"


def on_cpu(platform: CpuPlatform, directory: Path) -> CudaTracer:
    return CudaTracer(platform.experiment, CudaClock("cpu"), directory, device="cpu")


def scheduled_rows(record: PassRecord, context: dict[str, int]) -> list[dict[str, Any]]:
    """A pass as the scheduler has it, by row; `context` is brought up to date."""
    rows = []
    for one in sorted(record.batch(), key=lambda one: one.row):
        before = context.get(one.request_id, 0)
        (blocks,) = one.blocks
        rows.append({"context": before, "new": one.computed, "blocks": list(blocks)})
        context[one.request_id] = before + one.computed
    return rows


def served(*overrides: str) -> tuple[dict[str, list[int]], list[Any], int]:
    """Output tokens, the traced passes, and the queries of a tile."""
    experiment = expand(None, [*SETTINGS, *overrides], CONFIG).experiments[0].experiment
    with run_engine(platform_of(experiment)) as engine:
        recording = Recording()
        tracer: Any = engine.tracer
        engine.begin(recording, Marks())
        if tracer is not None:
            tracer.clear()
        tokens = serve(engine, build(experiment), Progress()).outputs
        if tracer is None:
            return tokens, [], 0
        tracer.finish()
        context: dict[str, int] = {}
        rows = [scheduled_rows(record, context) for record in recording.passes]
        passes = [
            {"rows": rows[traced.step], "layers": dict(tracer.flushes(traced))}
            for traced in tracer.passes
        ]
        return tokens, passes, tracer.tile_tokens


def main() -> None:
    backend = f"{__name__}.{InterpretedBackend.__name__}"
    platform: Any = CpuPlatform
    platform.backends = {**CpuPlatform.backends, "instrumented": backend}
    platform.tracer = on_cpu
    expected, _, _ = served(*PLAIN)
    tokens, passes, tile = served(*TRACED)
    result = {"expected": expected, "tokens": tokens, "passes": passes, "tile_tokens": tile}
    result["strided_tokens"], result["strided"], _ = served(*STRIDED)
    print(json.dumps(result, default=np.ndarray.tolist))


if __name__ == "__main__":
    import cuda_engine_run as module  # by the name that vLLM finds the backend under

    module.main()
