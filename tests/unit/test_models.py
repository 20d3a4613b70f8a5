"""Architectures: sizes against published numbers, and against transformers' own models."""

import json
from pathlib import Path

import pytest

from kvscope.base.errors import BadInput
from kvscope.plan import documents
from kvscope.plan.grid import expand
from kvscope.plan.models import Model

CONFIG = Path(__file__).parents[2] / "config"
NAMES = sorted(path.stem for path in (CONFIG / "model").glob("*.yaml"))
GIB = 2**30


def model(name: str) -> Model:
    return Model.model_validate(documents.load(CONFIG / "model" / f"{name}.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_named_as_its_file(name: str) -> None:
    assert model(name).name == name


# Parameters as `num_parameters()` counts them in the published checkpoints: model cards of
# Llama-2-7B (whose sizes Yarn-Llama-2-7b-64k has) and Llama-3.1-8B; for OPT-13B the sum over the
# shapes in facebook/opt-13b's config.json, which transformers counts alike (test below).
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("yarn-llama-2-7b", 6_738_415_616),
        ("llama-3.1-8b", 8_030_261_248),
        ("opt-13b", 12_853_473_280),
    ],
)
def test_parameters_are_the_published_count(name: str, parameters: int) -> None:
    assert model(name).parameters == parameters


# "model weights take … GiB" in vLLM 0.4.2's published logs of the KV-cache study. vLLM counts the
# table of rotary cosines and sines with them: one row of head_size values a position.
@pytest.mark.parametrize(
    ("name", "logged_gib"),
    [("yarn-llama-2-7b", 12.567), ("llama-3.1-8b", 14.989), ("opt-13b", 23.943)],
)
def test_weights_take_what_vllm_logged(name: str, logged_gib: float) -> None:
    result = model(name)
    rotary = result.max_position_embeddings * result.head_size * 2 if result.rope_theta else 0
    assert (result.weight_bytes + rotary) / GIB == pytest.approx(logged_gib, rel=1e-4)


# cache_block_size in the same logs: bytes of a block of 16 tokens over all layers.
@pytest.mark.parametrize(
    ("name", "block_bytes"),
    [("yarn-llama-2-7b", 8_388_608), ("llama-3.1-8b", 2_097_152), ("opt-13b", 13_107_200)],
)
def test_a_block_of_16_tokens_takes_what_vllm_logged(name: str, block_bytes: int) -> None:
    assert 16 * model(name).kv_bytes_per_token == block_bytes


@pytest.mark.parametrize("name", NAMES)
def test_transformers_builds_the_same_model_from_hf_config(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the engine's packages: PyTorch")
    transformers = pytest.importorskip("transformers", reason="needs the engine's packages")
    result = model(name)
    (tmp_path / "config.json").write_text(json.dumps(result.hf_config()))
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(p.numel() for p in built.parameters()) == result.parameters
    assert config.dtype == getattr(torch, result.dtype)
    assert config.max_position_embeddings == result.max_position_embeddings


def test_rotary_scaling_reaches_the_config() -> None:
    rope = model("yarn-llama-2-7b").hf_config()["rope_parameters"]
    assert rope == {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 4096,
    }
    assert model("llama-3.1-8b").hf_config()["rope_parameters"]["rope_type"] == "llama3"
    assert model("tiny-llama").hf_config()["rope_parameters"]["rope_type"] == "default"


def test_grouped_queries_shrink_the_cache_as_heads_do() -> None:
    assert model("tiny-llama").kv_bytes_per_token == 4 * model("tiny-gqa").kv_bytes_per_token


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["model.kv_heads=3"], "must be a multiple of model.kv_heads (3)"),
        (["model.head_size=64"], "must be model.hidden_size (256)"),
        (["model.rope_theta=null"], "model.rope_theta must be set"),
        (["model=tiny-opt", "model.kv_heads=4"], "OPT shares no keys and values"),
        (["model=tiny-opt", "model.rope_theta=1e4"], "OPT learns its positions"),
        (["model.dtype=int8"], "'float32', 'float16' or 'bfloat16'"),
        (["model.rope_scaling={rope_type:yarn,factor:2}"], "original_max_position_embeddings"),
        (["model.rope_scaling={rope_type:ntk}"], "one of yarn, llama3"),
    ],
)
def test_impossible_architectures_are_refused(overrides: list[str], complaint: str) -> None:
    with pytest.raises(BadInput) as error:
        expand(None, overrides, CONFIG)
    assert complaint in str(error.value)
    assert "the command line" in str(error.value)
