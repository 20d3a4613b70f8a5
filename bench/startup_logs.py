"""How vLLM's plan without a GPU compares with what servers on GPUs logged when they started.

    python bench/startup_logs.py [--only MODEL] [--write]

Plans the KV cache of each row of packages/kvscope-model/data/startup_logs.yaml that has an
architecture, with the memory that the log gives, and prints the blocks or tokens of both. They are
equal if the log's number is that of a memory which rounds to the logged one. Weights are compared,
too. `--write` keeps the figures in
bench/results/startup_logs.json.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvscope.base.errors import BadInput
from kvscope_model.capacity.gpus import Gpu, gpus
from kvscope_model.capacity.request import Answer, Question, ask_all

DATA = Path("packages/kvscope-model/data")
RESULTS = Path("bench/results/startup_logs.json")
GIB = 2**30
HALF_DIGIT = 0.0051 * GIB  # logs round GiB to two digits
ARGUMENTS = (
    *("max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size", "kv_cache_dtype"),
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
    *("decode_context_parallel_size", "enable_expert_parallel", "mamba_ssm_cache_dtype", "dtype"),
    *("enforce_eager", "gpu_memory_utilization", "async_scheduling", "enable_prefix_caching"),
)
NAMED = {
    "NVIDIA GB10": "gb10",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA RTX PRO 6000 Blackwell": "rtx-pro-6000",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 5090": "rtx-5090",
    "NVIDIA A100 80GB": "a100-80gb",
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA A100 40GB": "a100-40gb",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "Tesla T4": "t4",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
    "NVIDIA L40S": "l40s",
    "NVIDIA GH200 96GB": "gh200",
}
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="models whose name has this")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows = yaml.safe_load((DATA / "startup_logs.yaml").read_text("utf-8"))
    chosen = [row for row in rows if given.only in row["model"] and "config" in row]
    compared = [*comparisons(chosen)]
    for one in compared:
        print(json.dumps(one))
    print(summary(rows, compared))
    if given.write:
        RESULTS.write_text(json.dumps(compared, indent=1) + "\n", "utf-8")


def comparisons(rows: list[Row]) -> Iterator[Row]:
    """Each row beside its plan; those of one kind of GPU are planned by one process."""
    by_gpu: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        by_gpu[NAMED.get(row.get("gpu", ""), "h100"), row.get("gpus", 1)].append(row)
    for (gpu, count), group in by_gpu.items():
        questions = [question(row, gpus()[gpu], count) for row in group]
        for row, answer in zip(group, ask_all(questions), strict=True):
            try:
                yield described(row) | compared(row, answer())
            except BadInput as error:
                yield described(row) | {"state": "no plan", "why": str(error)}


def question(row: Row, gpu: Gpu, count: int) -> Question:
    """What the server of a row is asked."""
    config = json.loads((DATA / "architectures" / f"{row['config']}.json").read_text("utf-8"))
    config.pop("_source", None)
    arguments = [word for name in ARGUMENTS if name in row for word in _argument(name, row[name])]
    if "speculative_method" in row:
        drafts = {
            "method": row["speculative_method"],
            "num_speculative_tokens": row.get("num_speculative_tokens", 1),
        }
        arguments.append(f"--speculative-config={json.dumps(drafts)}")
    memory = row.get("available_kv_cache_gib")
    memory_bytes = int(memory * GIB) if memory else None
    return Question(row["model"], config, arguments, [1024], False, memory_bytes, gpu, count)


def _argument(name: str, value: Any) -> Iterator[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        yield f"--{flag}" if value else f"--no-{flag}"
    else:
        yield f"--{flag}={value}"


def described(row: Row) -> Row:
    keys = ("model", "architecture", "vllm", "gpu", "gpus", "link")
    return {key: row[key] for key in keys if key in row}


@dataclass(frozen=True)
class Range:
    """Values that follow from a memory which is known to two digits."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def compared(row: Row, answer: Answer) -> Row:
    """The state of a row: equal, differs, or nothing to compare."""
    plan = answer.plan
    result: Row = {"notes": list(answer.notes)}
    if "weights_gib" in row:
        planned = max(rank.weight_bytes for rank in plan.ranks) / GIB
        result["weights_gib"] = [row["weights_gib"], round(planned, 2)]
    if "available_kv_cache_gib" in row and row.get("gpu") in NAMED and "weights_gib" in row:
        result["kv_cache_gib"] = _estimate(row, answer)
    if "available_kv_cache_gib" not in row:
        return result | {"state": "no memory"}
    blocks = Range(
        *(int((plan.memory_bytes + sign * HALF_DIGIT) // plan.block_bytes) for sign in (-1, 1))
    )
    if "kv_cache_blocks" in row:
        planned_blocks = row["kv_cache_blocks"]
        result["blocks"] = [planned_blocks, plan.blocks]
        return result | {"state": "equal" if blocks.holds(planned_blocks) else "differs"}
    if "kv_cache_tokens" not in row:
        return result | {"state": "no tokens"}
    logged = row["kv_cache_tokens"]
    ways: dict[str, list[float]] = {
        "concurrency": [plan.capacity_tokens * n / plan.blocks for n in (blocks.low, blocks.high)],
        "blocks": [_old_tokens(answer, n) for n in (blocks.low, blocks.high)],
    }
    result["tokens"] = [logged, plan.capacity_tokens, _old_tokens(answer, plan.blocks)]
    equal = [name for name, ends in ways.items() if Range(ends[0] - 1, ends[1] + 1).holds(logged)]
    return result | {"state": "equal" if equal else "differs", "counted_by": equal[:1]}


def _estimate(row: Row, answer: Answer) -> list[float]:
    """Logged memory of the KV cache; estimated with the logged weights; its low and high end."""
    rank = answer.memory["ranks"][0]
    more = rank["weight_bytes"] / GIB - row["weights_gib"]
    ends = [rank[key] / GIB + more for key in ("kv_bytes", "kv_low_bytes", "kv_high_bytes")]
    return [row["available_kv_cache_gib"], *(round(end, 2) for end in ends)]


def _old_tokens(answer: Answer, blocks: float) -> int:
    """Tokens as vLLM counted them before 0.20: blocks of each group, of the smallest size."""
    groups = answer.plan.groups
    return int(blocks) // len(groups) * min(group.block_tokens for group in groups)


def summary(rows: list[Row], compared: list[Row]) -> str:
    states: dict[str, int] = defaultdict(int)
    for one in compared:
        states[one["state"]] += 1
    estimates = [one["kv_cache_gib"] for one in compared if "kv_cache_gib" in one]
    inside = sum(low <= logged <= high for logged, _, low, high in estimates)
    print(f"KV memory within the estimate in {inside} of {len(estimates)} starts")
    return f"{len(rows)} starts, {len(compared)} with an architecture: {dict(states)}"


if __name__ == "__main__":
    main()
