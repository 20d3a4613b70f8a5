"""`kvscope bytes` plans a cache as vLLM does: models of each family, without weights."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.plan.grid import expand
from kvscope.tables.kv_group import KvGroup
from kvscope.tables.kv_plan import held_blocks
from tests.engine.conftest import ROOT, kvscope

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("forked_commands")]

COMMON: dict[str, Any] = {
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 4096,
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "gqa": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "window": {
        **{"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]},
        **{"num_hidden_layers": 6, "sliding_window": 256},
    },
    "experts": {
        **{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]},
        **{"num_local_experts": 8, "num_experts_per_tok": 2},
    },
    "chunks": {
        **{"model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"]},
        **{"intermediate_size_mlp": 512, "attention_chunk_size": 512, "num_local_experts": 4},
        **{"num_experts_per_tok": 1, "interleave_moe_layer_step": 1},
    },
    "latent": {
        **{"model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"]},
        **{"kv_lora_rank": 128, "q_lora_rank": None, "qk_rope_head_dim": 32, "v_head_dim": 64},
        **{"qk_nope_head_dim": 64, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1},
        **{"num_experts_per_tok": 2, "topk_group": 1, "moe_intermediate_size": 64},
        **{"first_k_dense_replace": 4, "num_key_value_heads": 4},
    },
    "states": {
        **{"model_type": "falcon_h1", "architectures": ["FalconH1ForCausalLM"]},
        **{"mamba_d_ssm": 512, "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 64},
        **{"mamba_n_groups": 1},
    },
}
MEMORY = 256 * 2**20
LENGTHS = (100, 1000, 3000)


def plan(directory: Path, family: str, *words: str) -> dict[str, Any]:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(COMMON | FAMILIES[family]))
    asked = [*words, "--memory", str(MEMORY), "--tokens", *map(str, LENGTHS), "--json"]
    done = kvscope("bytes", "--gpu", "cpu", str(directory), *asked)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def held(found: dict[str, Any]) -> list[list[int]]:
    """The blocks of each group that requests of LENGTHS hold."""
    return [request["blocks"] for request in found["requests"]]


def test_full_attention_holds_every_token(tmp_path: Path) -> None:
    result = plan(tmp_path, "gqa", "block_size=32")
    (group,) = result["groups"]
    assert group["useful_bytes"] == result["block_bytes"] == 2 * 4 * 2 * 64 * 2 * 32
    assert result["blocks"] == MEMORY // result["block_bytes"]
    assert held(result) == [[-(-tokens // 32)] for tokens in LENGTHS]
    # Projections of Q and of the output, of K and V, and three products of the MLP; norms.
    weights = 4 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512 + 2 * 256) + 256
    flops = 2 * weights * 1000 + 4 * (4 * 4 * 64) * (1000 * 1001 // 2)
    assert result["requests"][1]["recompute_flops"] == flops


def test_a_window_frees_blocks_that_it_has_passed(tmp_path: Path) -> None:
    result = plan(tmp_path, "window", "block_size=32", "enable_prefix_caching=false")
    windows = [group["window_tokens"] for group in result["groups"]]
    assert windows.count(256) == len(windows) - 1
    for tokens, blocks in zip(LENGTHS, held(result), strict=True):
        for window, count in zip(windows, blocks, strict=True):
            # The newest token attends to itself and 255 before it.
            first = max(0, tokens - window) // 32 if window else 0
            assert count == -(-tokens // 32) - first


@pytest.mark.parametrize(
    "family",
    ["window", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("chunks", "states"))],
)
def test_the_blocks_of_a_request_follow_from_its_tokens(tmp_path: Path, family: str) -> None:
    result = plan(tmp_path, family, "enable_prefix_caching=false")
    tokens = np.array(LENGTHS)
    for number, group in enumerate(result["groups"]):
        own = {key: value for key, value in group.items() if key != "state"}
        expected = held_blocks(KvGroup(**own), tokens - 1, tokens)
        assert expected.tolist() == [blocks[number] for blocks in held(result)]


@pytest.mark.thorough
def test_experts_count_as_far_as_a_token_takes_them(tmp_path: Path) -> None:
    result = plan(tmp_path, "experts")
    expert = 3 * 256 * 512
    others = 2 * 256 * 256 + 2 * 256 * 128 + 8 * 256 + 2 * 256
    assert result["weights"] == 4 * (2 * expert + others) + 256


@pytest.mark.thorough
def test_latent_attention_holds_the_latent_and_fp8_half_of_it(tmp_path: Path) -> None:
    result = plan(tmp_path, "latent", "block_size=16")
    assert result["block_bytes"] == 4 * (128 + 32) * 2 * 16
    fp8 = plan(tmp_path, "latent", "block_size=16", "kv_cache_dtype=fp8")
    assert 2 * fp8["block_bytes"] == result["block_bytes"]


@pytest.mark.thorough
def test_a_state_does_not_grow_and_is_padded_to_the_blocks_beside_it(tmp_path: Path) -> None:
    result = plan(tmp_path, "states", "enable_prefix_caching=false")
    full, state = result["groups"]
    assert (full["state"], state["state"]) == (False, True)
    assert state["useful_bytes"] < state["padded_bytes"] == full["padded_bytes"]
    assert {blocks[1] for blocks in held(result)} == {1}
    padding = full["padded_bytes"] - full["useful_bytes"]
    for request in result["requests"]:
        padded = request["blocks"][0] * padding
        padded += request["blocks"][1] * (state["padded_bytes"] - state["useful_bytes"])
        assert request["padding_bytes"] == padded


STARTED = """
import json, sys
from vllm import LLM
from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity
directory, memory, words = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
llm = LLM(
    directory, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True,
    kv_cache_memory_bytes=memory, **words,
)
core = llm.llm_engine.engine_core.engine_core
cache, config = core.scheduler.kv_cache_config, core.vllm_config
print(json.dumps([cache.num_blocks, *get_kv_cache_capacity(config, cache)]))
"""


IN_FULL = ("experts", "chunks")  # groups as others have


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=[pytest.mark.exhaustive] * (family in IN_FULL))
        for family in FAMILIES
    ],
)
@pytest.mark.thorough
def test_the_plan_is_that_of_a_started_engine(tmp_path: Path, family: str) -> None:
    words = {"max_model_len": 2048, "max_num_batched_tokens": 1024, "max_num_seqs": 8}
    result = plan(tmp_path, family, *(f"{key}={value}" for key, value in words.items()))
    done = subprocess.run(
        [sys.executable, "-c", STARTED, str(tmp_path), str(MEMORY), json.dumps(words)],
        capture_output=True,
        text=True,
        env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    started = json.loads(done.stdout.strip().splitlines()[-1])
    assert [result["blocks"], result["capacity_tokens"], result["max_concurrency"]] == started


@pytest.mark.thorough
def test_a_model_without_a_cache_is_refused(tmp_path: Path) -> None:
    encoder = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 512}
    encoder |= {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(encoder))
    done = kvscope("bytes", "--gpu", "cpu", str(tmp_path))
    assert done.returncode == 2
    assert "it has no KV cache" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["no_such_key=3"], "'no_such_key' is no argument of `vllm serve`"),
        (["block_sise=16"], "(did you mean 'block_size'?)"),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (
                (["block_size=0"], "block_size is 0: Input should be greater than 0"),
                (["kv_cache_memory_bytes=9"], "kv_cache_memory_bytes is --memory here"),
                (["config=serve.yaml"], "config is not read here; give the arguments"),
                (["--memory", "999999999GiB"], "blocks, but at most 10,000,000 can be planned"),
            )
        ),
    ],
)
def test_a_refused_argument_is_a_sentence(words: list[str], told: str) -> None:
    done = kvscope("bytes", "--gpu", "cpu", "tiny-gqa", *words)
    assert done.returncode == 2
    assert told in done.stderr.splitlines()[-1]


@pytest.mark.thorough
@pytest.mark.parametrize(("model", "size"), [("tiny-gqa", 32), ("tiny-mla", 16)])
def test_a_model_of_the_configuration_has_the_bytes_that_runs_of_it_have(
    model: str, size: int
) -> None:
    words = [f"model={model}", f"cache.block_size={size}"]
    (planned,) = expand(None, words, ROOT / "config").experiments
    done = kvscope(
        "bytes", "--gpu", "cpu", model, f"block_size={size}", "--memory", "64MiB", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["block_bytes"] == planned.experiment.block_bytes


def test_blocks_that_no_backend_takes_are_planned_and_said_to_be_refused(tmp_path: Path) -> None:
    result = plan(tmp_path, "gqa", "block_size=48")
    assert result["refused"].startswith("No common block size for 48")
    assert result["groups"][0]["block_tokens"] == 48


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"hidden_size": "big"}, "Field 'hidden_size' expected int, got str (value: 'big')"),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (
                ({"num_attention_heads": 0}, "ZeroDivisionError: "),
                ({"num_key_value_heads": 3}, "num_heads (4) is not divisible by num_kv_heads (3)"),
                ({"architectures": ["Strange"]}, "architectures ['Strange'] are not supported"),
            )
        ),
    ],
)
def test_a_damaged_configuration_is_a_sentence(
    tmp_path: Path, wrong: dict[str, Any], told: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(COMMON | FAMILIES["gqa"] | wrong))
    done = kvscope("bytes", "--gpu", "cpu", str(tmp_path))
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert told in last
    assert len(last) < 600
    assert "Traceback" not in done.stderr
