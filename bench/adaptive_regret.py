"""Regret of `adaptive` against the best single overflow policy, over random modeled experiments.

    python bench/adaptive_regret.py [--seeds 0-119] [--out regret.csv]

Each seed draws hardware and its constants, a model, lengths, arrivals, batching, the size, blocks
and layout of the cache, and the host's memory: its size, kind and copies. Requests may be preempted
hundreds of times, or never. The regret is the makespan of `adaptive` over the least of `recompute`,
`swap` and `activation`, less one. The oracles hold of every run, or the bench ends.
"""

import argparse
import math
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from kvscope.base.errors import BadInput
from kvscope.cli import batch
from kvscope.judge.oracles.registry import judge_tables
from kvscope.judge.records import read_records
from kvscope.metrics.serving import makespan_s
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.run.environment import measured_environment
from kvscope.tables.verdict import VIOLATED
from kvscope_model.hardware import files
from kvscope_model.hardware import hardware as data

CONFIG = Path(__file__).parents[1] / "config"
POLICIES = ("recompute", "swap", "activation", "adaptive")
MODELS = ("yarn-llama-2-7b", "opt-6.7b", "opt-13b", "llama-3.1-8b", "tiny-llama", "tiny-opt")
WARM = "ADAPTIVE_REGRET"  # set in the process that runs vLLM
# By how much each constant may be multiplied or divided.
FACTORS = {
    **dict.fromkeys(("gemm_flops_per_s", "attention_flops_per_s"), 3),
    **dict.fromkeys(("memory_bytes_per_s", "weight_bytes_per_s"), 2),
    **dict.fromkeys(("layer_launch_s", "request_s", "between_passes_s", "copy_issue_s"), 4),
    **dict.fromkeys(("pinned_copy_s", "pageable_copy_s"), 6),
    **dict.fromkeys(("pinned_out_bytes_per_s", "pinned_in_bytes_per_s"), 8),
    **dict.fromkeys(("pageable_out_bytes_per_s", "pageable_in_bytes_per_s"), 6),
}


def drawn(seed: int) -> tuple[list[str], dict[str, Any]]:
    """Settings of an experiment, and what its host pool is."""
    draw = random.Random(f"adaptive regret {seed}")
    model = draw.choice(MODELS)
    hardware = draw.choice([n for n in files.names() if n != "cpu" or model.startswith("tiny")])
    usual, constants = data.read(hardware), {}
    for name in draw.sample(list(FACTORS), draw.randint(0, 6)):
        constants[name] = getattr(usual, name) * FACTORS[name] ** draw.uniform(-1, 1)
    batching = draw.choice(["prefill_first", "mixed", "chunked"])
    block_size, requests = draw.choice([4, 8, 16, 32, 64]), draw.choice([6, 12, 24, 48, 96])
    together = draw.choice([8, 32, 64, 256])
    longest = draw.randint(150, 1900 if "opt" in model else 3000)
    if draw.random() < 0.25:
        prompt = draw.randint(1, longest - 16)
        lengths = [f"prompt_tokens={prompt}", f"output_tokens={min(longest - prompt, 500)}"]
        kind, mean = "fixed", prompt + min(longest - prompt, 500)
    else:
        shortest, ratio = draw.randint(32, longest // 2), draw.choice([0.25, 0.5, 1, 2, 4])
        lengths = [f"min_tokens={shortest}", f"max_tokens={longest}"]
        lengths += [f"prompt_to_output_ratio={ratio}"]
        kind, mean = draw.choice(["zipf", "uniform"]), (shortest + longest) // 2
    if draw.random() < 0.3:
        lengths += ["arrival=poisson", f"rate_per_s={draw.choice([0.5, 2, 8, 20])}"]
    chunk = max(draw.choice([64, 128, 256, 512, 1024]), together)
    least = math.ceil(longest * draw.uniform(1.05, 1.5) / block_size) + 2
    wanted = draw.choice([0.15, 0.3, 0.5, 0.7, 0.9, 1.5]) * min(requests, together) * mean
    words = [
        *("device=modeled", f"device.hardware={hardware}", f"model={model}", f"seed={seed}"),
        f"device.constants={{{', '.join(f'{k}: {v:.4g}' for k, v in constants.items())}}}",
        f"device.kernels={draw.choice(['vllm', 'vllm-0.4.2'])}",
        *(f"workload={kind}", f"workload.num_requests={requests}"),
        *(f"workload.{setting}" for setting in lengths),
        *(f"engine.max_num_seqs={together}", f"engine.max_model_len={longest + 8}"),
        f"engine.max_num_batched_tokens={max(chunk, draw.choice([1, 2, 4]) * (longest + 8))}",
        *(f"batching={batching}", *([f"batching.chunk_tokens={chunk}"] * (batching == "chunked"))),
        *(f"cache.block_size={block_size}", f"cache.blocks={max(least, int(wanted / block_size))}"),
        f"cache.admission={draw.choice(['vllm', 'vllm-0.4.2'])}",
        f"cache.watermark={draw.choice([0, 0.01, 0.02])}",
        f"cache.layout={draw.choice(['by_k_and_v', 'by_layer', 'by_block'])}",
    ]
    return words, {
        "of_cache": draw.choice([0.05, 0.1, 0.25, 0.5, 1, 4]),
        "host_memory": draw.choice(["pinned", "pageable"]),
        "copies": draw.choice(["per_block", "coalesced"]),
    }


def experiments(seed: int) -> Iterator[Experiment]:
    """The same experiment with each policy that it may have."""
    words, pool = drawn(seed)
    (planned,) = expand(None, [*words, "overflow=recompute"], CONFIG).experiments
    yield planned.experiment
    blocks = max(4.0, pool.pop("of_cache") * planned.experiment.cache_blocks)
    pool["host_gib"] = f"{blocks * planned.experiment.block_bytes / 2**30:.6f}"
    words += [f"overflow.{key}={value}" for key, value in pool.items()]
    for policy in POLICIES[1:]:
        try:
            (planned,) = expand(None, [*words, f"overflow={policy}"], CONFIG).experiments
        except BadInput:
            if policy != "activation":  # larger than K and V
                raise
        else:
            yield planned.experiment


def row(seed: int, directory: Path) -> dict[str, Any]:
    """The makespans of one seed."""
    result: dict[str, Any] = {"seed": seed}
    for experiment in experiments(seed):
        run, policy = directory / experiment.id, experiment.overflow.name
        if error := batch.run_one(batch.Job(experiment, run)):
            sys.exit(f"seed {seed}, {policy}: {error}")
        records = read_records(run)
        for verdict in judge_tables(records):
            if verdict.state == VIOLATED:
                sys.exit(f"seed {seed}, {policy}: {verdict.name}")
        result[policy] = makespan_s(records)
        result["preemptions"] = int((records.preemptions["event"] == "preempt").sum())
    singles = {policy: result[policy] for policy in POLICIES[:3] if policy in result}
    result["best"] = min(singles, key=singles.__getitem__)
    result["regret"] = result["adaptive"] / singles[result["best"]] - 1
    return result


def main() -> None:
    """Run the seeds in the environment of measured processes, and print those with the most
    regret."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0-119", help="first and last, as 0-119")
    parser.add_argument("--out", type=Path, help="a CSV file of all seeds")
    arguments = parser.parse_args()
    if WARM not in os.environ:
        (experiment, *_) = experiments(0)
        environment = measured_environment(experiment) | {WARM: "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    first, last = map(int, arguments.seeds.split("-"))
    rows, refused = [], 0
    for seed in range(first, last + 1):
        with tempfile.TemporaryDirectory() as directory:
            try:
                rows.append(row(seed, Path(directory)))
            except BadInput:  # larger than the device
                refused += 1
            else:
                print(
                    ", ".join(f"{k} {v:.4g}" if k != "best" else v for k, v in rows[-1].items()),
                    flush=True,
                )
    result = pd.DataFrame(rows).sort_values("regret", ascending=False)
    if arguments.out:
        result.to_csv(arguments.out, index=False)
    lost, preempting = result["regret"], (result["preemptions"] > 0).sum()
    print(result.head(10).to_string(index=False))
    print(f"{len(result)} experiments ({refused} do not fit), {preempting} with preemptions")
    print(
        f"regret: mean {lost.mean():.2%}, most {lost.max():.2%}, above 3 % in {(lost > 0.03).sum()}"
    )


if __name__ == "__main__":
    main()
