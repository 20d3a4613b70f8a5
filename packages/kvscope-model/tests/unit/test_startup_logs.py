"""The table of public start-up logs is well formed, and estimates of memory agree with it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvscope_model.capacity.gpus import gpus
from kvscope_model.capacity.memory import RankMemory, rank
from kvscope_model.capacity.profile import Release, Shape

RESULTS = Path(__file__).parents[4] / "bench" / "results" / "startup_logs.json"
DATA = Path(__file__).parents[2] / "data"
LOGS: list[dict[str, Any]] = yaml.safe_load((DATA / "startup_logs.yaml").read_text())
ARCHITECTURES = {path.stem: path for path in (DATA / "architectures").glob("*.json")}

TEXT = {
    *("model", "architecture", "gpu", "vllm", "dtype", "quantization", "kv_cache_dtype"),
    *("speculative_method", "mamba_ssm_cache_dtype", "config", "link"),
}
COUNTS = {
    *("gpus", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
    *("decode_context_parallel_size", "max_model_len", "kv_cache_memory_bytes", "block_size"),
    *("max_num_seqs", "max_num_batched_tokens", "num_speculative_tokens", "padding_layers"),
    *("attention_block_tokens", "kv_cache_blocks", "kv_cache_tokens", "concurrency_tokens"),
    "estimated_max_model_len",
}
FLAGS = {
    *("enable_expert_parallel", "enforce_eager", "enable_prefix_caching", "async_scheduling"),
    *("language_model_only", "fork"),
}
MEASURES = {
    *("gpu_memory_gib", "gpu_memory_utilization", "free_memory_gib", "weights_gib"),
    *("activation_gib", "non_torch_gib", "estimated_graphs_gib", "graphs_gib"),
    *("available_kv_cache_gib", "mamba_padding_percent", "concurrency", "needed_kv_cache_gib"),
}
# Differences of two readings of free memory, which can be below zero.
SIGNED = {"graphs_gib", "estimated_graphs_gib", "non_torch_gib", "available_kv_cache_gib"}
CAPACITY = {"available_kv_cache_gib", "kv_cache_tokens", "kv_cache_blocks"}


def named(log: dict[str, Any]) -> str:
    return f"{log['model']}-{log.get('kv_cache_tokens', 'refused')}"


@pytest.mark.parametrize("log", LOGS, ids=named)
def test_a_log_has_known_keys_with_values_of_their_types(log: dict[str, Any]) -> None:
    assert log.keys() <= TEXT | COUNTS | FLAGS | MEASURES
    assert {"model", "gpus", "link"} <= log.keys()
    assert CAPACITY & log.keys()
    for key, value in log.items():
        if key in TEXT:
            assert isinstance(value, str)
            assert value.strip() == value != ""
        elif key in FLAGS:
            assert isinstance(value, bool)
        elif key in COUNTS:
            assert type(value) is int
            assert value > (-1 if key == "num_speculative_tokens" else 0)
        else:
            assert type(value) in (int, float)
            assert value >= 0 or key in SIGNED


@pytest.mark.parametrize("log", LOGS, ids=named)
def test_a_log_has_a_link_and_plausible_sizes(log: dict[str, Any]) -> None:
    assert log["link"].startswith("https://")
    assert " " not in log["link"]
    assert log.get("gpu_memory_utilization", 1) <= 1
    assert log.get("available_kv_cache_gib", 0) < log.get("gpu_memory_gib", 300)
    assert ("concurrency" in log) == ("concurrency_tokens" in log)


@pytest.mark.parametrize("log", [log for log in LOGS if "config" in log], ids=named)
def test_the_architecture_of_a_log_is_in_its_file(log: dict[str, Any]) -> None:
    numbers = json.loads(ARCHITECTURES[log["config"]].read_text())
    assert numbers["_source"].startswith("https://")
    assert log["architecture"] in numbers["architectures"]


def test_every_file_of_architectures_is_of_a_log() -> None:
    assert ARCHITECTURES.keys() == {log["config"] for log in LOGS if "config" in log}


def test_no_log_is_in_the_table_twice_and_models_are_sorted() -> None:
    logged = ("model", "gpu", "vllm", "max_model_len", *sorted(CAPACITY), "weights_gib")
    assert len({tuple(log.get(key) for key in logged) for log in LOGS}) == len(LOGS)
    models = [log["model"].lower() for log in LOGS]
    assert models == sorted(models)


def estimated(known: dict[str, Any]) -> RankMemory:
    """The memory of a start, from the shape that its plan had, with the logged weights."""
    gpu, gib = gpus()[known["gpu"]], 2**30
    usable = int(known["utilization"] * (known["gpu_memory_gib"] or gpu.memory_gib) * gib)
    weights = int(known["logged"][0] * gib)
    return rank(gpu, usable, weights, Shape(**known["shape"]), Release(**known["release"]))


def test_the_memory_of_the_cache_lies_within_the_estimate_in_most_starts() -> None:
    """As `python bench/startup_logs.py` has planned them; the shapes are kept with its results."""
    starts = [row["estimate"] for row in json.loads(RESULTS.read_text()) if "estimate" in row]
    inside = near = 0
    for start in starts:
        memory, logged = estimated(start), start["logged"][1] * 2**30
        inside += memory.kv_low_bytes <= logged <= memory.kv_high_bytes
        near += abs(memory.kv_bytes - logged) <= 0.03 * logged
    assert len(starts) > 40
    assert inside >= 0.85 * len(starts)
    assert near >= 0.65 * len(starts)
