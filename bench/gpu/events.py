"""kvscope's CUDA attention: is it right, how fast is it, and what does recording cost?

    python bench/gpu/events.py [--out bench/results/events-gpu.json] [--no-engine]
    python bench/gpu/events.py --rehearse        small sizes, on the CPU, in Triton's interpreter

Kernels, with Llama-2-7B's sizes (32 heads of 128, float16, blocks of 16): decoding batches of 1 to
128 requests with 512 to 8192 tokens each, without and with recording, beside vLLM's Triton and
FlashAttention kernels; and prefilling. Times are medians, the L2 cache flushed before each call.
Engine: the tokens of tiny-llama in float32 with vLLM's kernels, and with ours, traced and not.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from equal_requests import BLOCK, Workload

from kvscope.run.provenance import hardware, versions

ROOT = Path(__file__).parents[2]
TOLERANCE = 2e-3  # largest difference of an output, float16
DECODE = list(product((1, 2, 4, 8, 16, 32, 64, 128), (512, 2048, 8192)))
PREFILL = [(1, 512), (1, 2048), (4, 2048)]
REHEARSAL = [(1, 40), (3, 70)]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # times mean nothing
TARGET = 0.9  # of the speed of vLLM's Triton kernel, decoding without recording


def median_ms(call: Callable[[], object], device: torch.device) -> float:
    """Median milliseconds of a call."""
    if device.type == "cuda" and not INTERPRETED:
        from triton.testing import do_bench

        return float(do_bench(call, warmup=50, rep=200, return_mode="median"))
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def compared(workload: Workload) -> dict[str, Any]:
    """A row of the result: times, differences, and the counts of recorded events."""
    from kvscope_kernels.engine.cuda.buffer import HEADER
    from kvscope_kernels.kv_events import RECORD

    calls = {"off": workload.ours, "on": lambda: workload.ours(record=True), **others(workload)}
    outputs = {name: call().clone().float() for name, call in calls.items()}
    times = {name: median_ms(call, workload.device) for name, call in calls.items()}
    expected = outputs.get("flash")
    expected = workload.plain().float() if expected is None else expected
    headers = workload.segments.headers.cpu().numpy().view(HEADER)[:, 0]
    events = workload.segments.events.cpu().numpy().view(RECORD)[:, 0]
    recorded = int(headers["events"].sum())
    expected_events = 2 * workload.heads * int(tiles_blocks(workload).sum())
    more_ms = times["on"] - times["off"]
    return {
        "requests": workload.requests,
        "tokens": workload.length,
        "queries": workload.new,
        "splits": workload.tiles.host.splits,
        "ms": times,
        "recording_costs": times["on"] / times["off"],
        "ns_per_event": more_ms * 1e6 / recorded if recorded else None,
        "speed_beside_triton": times["triton"] / times["off"] if "triton" in times else None,
        "speed_beside_flash": times["flash"] / times["off"] if "flash" in times else None,
        "largest_difference": float((outputs["off"] - expected).abs().max()),
        "same_bits_when_recording": bool(torch.equal(outputs["on"], outputs["off"])),
        "events": recorded,
        "expected_events": expected_events,
        "dropped": int(headers["dropped"].sum()),
        "events_per_s": recorded / (times["on"] * 1e-3),
        "median_event_ticks": float(np.median(events["duration_ticks"][events["tokens"] > 0])),
        "sms_used": len(set(headers["sm"].tolist())),
    }


def others(workload: Workload) -> dict[str, Callable[[], torch.Tensor]]:
    """vLLM's kernels that run here: Triton's on a GPU, FlashAttention's where it is compiled."""
    if workload.device.type != "cuda" or INTERPRETED:
        return {}
    flash = {"flash": workload.vllm_flash} if has_flash_attention() else {}
    return {"triton": workload.vllm_triton, **flash}


def has_flash_attention() -> bool:
    """Whether vLLM's build has FlashAttention, as its wheel for CUDA does."""
    import vllm.vllm_flash_attn  # noqa: F401

    spaces = (torch.ops._vllm_fa2_C, torch.ops._vllm_fa3_C)
    return any(hasattr(space, name) for space in spaces for name in ("varlen_fwd", "fwd"))


def tiles_blocks(workload: Workload) -> np.ndarray:
    """Blocks that each tile reaches."""
    rows = workload.tiles.host.rows
    return np.asarray(-(-(rows[:, 2] + rows[:, 3]) // BLOCK))


def kernels(rehearse: bool) -> Iterator[dict[str, Any]]:
    """All rows, printed as they come."""
    device = torch.device("cpu" if rehearse else "cuda")
    small = {"heads": 2, "head_size": 32} if rehearse else {}
    sizes = [(n, tokens, 1) for n, tokens in (REHEARSAL if rehearse else DECODE)]
    sizes += [(n, tokens, tokens) for n, tokens in (REHEARSAL[:1] if rehearse else PREFILL)]
    for requests, tokens, new in sizes:
        row = compared(Workload(requests, tokens, new, device, **small))
        print(json.dumps(row), flush=True)
        yield row
        if not rehearse:
            torch.cuda.empty_cache()


def engine() -> dict[str, Any]:
    """Output tokens and seconds of one workload, with vLLM's kernels and with ours."""
    import pandas as pd

    ways = {
        "vllm": ["engine.attention=vllm"],
        "off": ["engine.attention=instrumented"],
        "full": ["tracing=full"],
    }
    common = ["device=cuda", "model=tiny-llama", "workload=uniform", "workload.num_requests=16"]
    common += ["cache.blocks=512", "cache.block_size=16", "profiler=none", "repeats=1", "warmup=1"]
    tokens, seconds = {}, {}
    for name, settings in ways.items():
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, "-m", "kvscope.cli", "run", *common, *settings]
            subprocess.run([*command, "--out", directory], check=True)
            requests = pd.read_parquet(Path(directory) / "requests.parquet")
        tokens[name] = requests.set_index("request_id")["output_sha256"]
        seconds[name] = float(requests["finished_s"].max())
    return {
        "requests": len(tokens["vllm"]),
        "requests_with_vllms_tokens": int((tokens["off"] == tokens["vllm"]).sum()),
        "requests_with_same_tokens_when_traced": int((tokens["full"] == tokens["off"]).sum()),
        "seconds": seconds,
    }


def provenance() -> dict[str, Any]:
    """GPU, driver, versions, command."""
    query = "--query-gpu=name,driver_version,memory.total,clocks.max.sm"
    gpu = subprocess.run(["nvidia-smi", query, "--format=csv"], capture_output=True, text=True)
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "gpu": gpu.stdout.splitlines(),
        "versions": versions(),
        "hardware": hardware(),
    }


def timer(device: str) -> dict[str, Any]:
    """The step of the GPU's timer, and how closely it is tied to the host's clock."""
    from kvscope_kernels.engine.cuda.clock import CudaClock

    clock = CudaClock(device)
    uncertainty_ns = clock.sample().uncertainty_ns
    return {"step_ns": clock.resolution_ns(1), "calibration_uncertainty_ns": uncertainty_ns}


def errors(row: dict[str, Any]) -> list[str]:
    """Complaints about a row, except about its times."""
    where = f"{row['requests']} × {row['tokens']} tokens, {row['queries']} queries"
    faults = []
    if not row["largest_difference"] <= TOLERANCE:
        faults.append(f"{where}: differs by {row['largest_difference']:.2g}")
    if not row["same_bits_when_recording"]:
        faults.append(f"{where}: recording changes the output")
    if row["dropped"] or row["events"] != row["expected_events"]:
        faults.append(f"{where}: {row['events']} events of {row['expected_events']}")
    return faults


def verdict(result: dict[str, Any]) -> list[str]:
    """Each fault of the result in a sentence."""
    faults = []
    for row in result["kernels"]:
        faults += errors(row)
        slow = row["queries"] == 1 and (row["speed_beside_triton"] or 1) < TARGET
        if slow:
            where = f"{row['requests']} × {row['tokens']} tokens"
            faults.append(f"{where}: {row['speed_beside_triton']:.2f} × vLLM's Triton kernel")
    if engine_found := result.get("engine"):
        requests = engine_found["requests"]
        for key in ("requests_with_vllms_tokens", "requests_with_same_tokens_when_traced"):
            if engine_found[key] < requests:
                faults.append(f"{key.replace('_', ' ')}: {engine_found[key]} of {requests}")
    return faults


def main() -> None:
    """Measure, judge, and store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/events-gpu.json")
    parser.add_argument("--no-engine", action="store_true", help="measure the kernels only")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU; stores nothing")
    arguments = parser.parse_args()
    if arguments.rehearse and os.environ.get("TRITON_INTERPRET") != "1":
        os.execve(
            sys.executable, [sys.executable, *sys.argv], os.environ | {"TRITON_INTERPRET": "1"}
        )
    result: dict[str, Any] = {"timer": timer("cpu" if arguments.rehearse else "cuda")}
    result |= {"kernels": list(kernels(arguments.rehearse))}
    if not arguments.rehearse and not arguments.no_engine:
        result["engine"] = engine()
    result |= {"faults": verdict(result), **provenance()} if not arguments.rehearse else {}
    faults = verdict(result)
    print("\n".join(faults) or "Everything is as it should be.")
    if not arguments.rehearse:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
