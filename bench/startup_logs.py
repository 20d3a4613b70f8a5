"""How vLLM's plan without a GPU compares with what servers on GPUs logged when they started.

    python bench/startup_logs.py [--only MODEL] [--write | --again]

Plans the KV cache of each row of packages/kvscope-model/data/startup_logs.yaml that has an
architecture, with the memory that the log gives, and prints the blocks or tokens of both. They are
equal if the log's number is that of a memory which rounds to the logged one. Weights are compared,
too, and the memory of the KV cache with its estimate, where GPU, weights and release are known:
with the logged weights, and with the sampler of that release. `--write` keeps the figures in
bench/results/startup_logs.json; `--again` estimates anew from the shapes in that file.
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from kvscope.base.errors import BadInput
from kvscope_model.capacity.gpus import Gpu, gpus
from kvscope_model.capacity.memory import RankMemory, rank
from kvscope_model.capacity.profile import CURRENT, FOUR_BITS, Release, Shape
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
    "language_model_only",
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
OLDER_UTILIZATION = 0.9  # vLLM's default before 0.20
# Releases whose profile differs, by the first that has it (0.8: the first with the V1 engine).
# The sampler of the V1 model runner has logits in float32, probabilities and random numbers beside
# the logits, FlashInfer's no random numbers; before 0.17 PyTorch's also has a sorted copy with its
# indices. CUDA graphs count since 0.21.
RELEASES = {
    (0, 29): CURRENT,
    (0, 21): Release(14.5, 0, 10),
    (0, 17): Release(14.5, 0, 10, counts_graphs=False),
    (0, 11): Release(38, 0, 10, counts_graphs=False),
    (0, 8): Release(38, 0, 10, keeps_workspaces=False, counts_graphs=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="models whose name has this")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--again", action="store_true", help="estimate anew, without plans")
    given = parser.parse_args()
    rows = yaml.safe_load((DATA / "startup_logs.yaml").read_text("utf-8"))
    chosen = [row for row in rows if given.only in row["model"] and "config" in row]
    compared = json.loads(RESULTS.read_text("utf-8")) if given.again else [*comparisons(chosen)]
    for one in compared:
        if "estimate" in one:
            one["kv_cache_gib"] = estimated(one["estimate"])
    for one in compared:
        print(json.dumps(one))
    print(summary(rows, compared))
    if given.write or given.again:
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
    if "gpu_memory_utilization" not in row and _release(row) < (0, 20):
        arguments.append(f"--gpu-memory-utilization={OLDER_UTILIZATION}")
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
    if comparable(row):
        result["estimate"] = _shapes(row, answer)
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


def comparable(row: Row) -> bool:
    """Whether a row has all that an estimate of its KV cache's memory needs."""
    known = row.get("gpu") in NAMED and "weights_gib" in row and "available_kv_cache_gib" in row
    return known and _release(row) >= min(RELEASES) and not row.get("fork")


def _release(row: Row) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", row.get("vllm", ""))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _shapes(row: Row, answer: Answer) -> Row:
    """What the estimate of a row follows from, beside the formula."""
    release = max(first for first in RELEASES if first <= _release(row))
    name = NAMED[row["gpu"]]
    utilization = answer.memory["ranks"][0]["usable_bytes"] / gpus()[name].memory_bytes
    shape = dict(answer.memory["shape"])
    if FOUR_BITS in row.get("quantization", ""):  # which the known config.json may lack
        shape["experts"] = 0
    return {
        "gpu": name,
        "gpu_memory_gib": row.get("gpu_memory_gib"),
        "utilization": round(utilization, 6),
        "logged": [row["weights_gib"], row["available_kv_cache_gib"]],
        "release": asdict(RELEASES[release]),
        "shape": shape,
    }


def estimated(known: Row) -> list[float]:
    """Logged memory of the KV cache; estimated with the logged weights; its low and high end."""
    weights_gib, logged = known["logged"]
    gpu = gpus()[known["gpu"]]
    total_gib = known["gpu_memory_gib"] or gpu.memory_gib
    sizes = int(known["utilization"] * total_gib * GIB), int(weights_gib * GIB)
    shape, release = Shape(**known["shape"]), Release(**known["release"])
    memory: RankMemory = rank(gpu, *sizes, shape, release)
    ends = memory.kv_bytes, memory.kv_low_bytes, memory.kv_high_bytes
    return [logged, *(round(end / GIB, 2) for end in ends)]


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
    near = sum(abs(usual - logged) <= 0.03 * logged for logged, usual, _, _ in estimates)
    narrow = sum(high - low <= 0.06 * logged for logged, _, low, high in estimates)
    print(
        f"KV memory of {len(estimates)} starts: {inside} within the estimate's range, {near} "
        f"within 3 % of its usual value; {narrow} ranges are within 3 %"
    )
    return f"{len(rows)} starts, {len(compared)} with an architecture: {dict(states)}"


if __name__ == "__main__":
    main()
