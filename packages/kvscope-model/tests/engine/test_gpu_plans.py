"""Plans for GPUs are what servers on them have logged, and what vLLM refuses there is refused.

Numbers are those of public logs and reports (packages/kvscope-model/data, and the links here).
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvscope.base.errors import BadInput
from kvscope_model.capacity.checkpoint import Checkpoint
from kvscope_model.capacity.gpus import gpu_of
from kvscope_model.capacity.request import Answer, Question, ask_all

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")
pytest.importorskip("triton", reason="triton is not here; run `make env`")

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ARCHITECTURES = Path(__file__).parents[2] / "data" / "architectures"
GIB = 2**30
TINY: dict[str, Any] = {
    **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"},
    **{"num_hidden_layers": 6, "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 512},
    **{"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64},
    "max_position_embeddings": 4096,
}


def published(name: str) -> dict[str, Any]:
    """The numbers of a published config.json."""
    config: dict[str, Any] = json.loads((ARCHITECTURES / f"{name}.json").read_text("utf-8"))
    return config


def question(config: dict[str, Any], memory: float | None, *arguments: str) -> Question:
    """A question about a server on H100s; `memory` is in bytes."""
    words = [f"--{word}" for word in arguments]
    return Question(
        "asked", config, words, [1024], False, int(memory) if memory else None, gpu_of("h100"), 8
    )


LLAMA = published("meta-llama--Llama-3.1-8B-Instruct")
# One rank of four, without the quantization of weights: its KV heads divided.
GPT_OSS = published("openai--gpt-oss-120b") | {"num_key_value_heads": 2, "num_attention_heads": 16}
GPT_OSS.pop("quantization_config", None)
KIMI = published("moonshotai--Kimi-K2-Instruct")
IMAGES = published("Qwen--Qwen2.5-VL-7B-Instruct")
NEMOTRON = published("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")

QUESTIONS: dict[str, Question] = {
    # github.com/vllm-project/vllm/issues/10517: 3.81 GiB on an RTX 3090
    "llama": question(LLAMA, 3.8125 * GIB, "block-size=16", "max-model-len=20000"),
    # the log of vLLM 0.15 on four H100s, 100.66 GiB: 84.12 x without asynchronous scheduling
    "gpt-oss": question(
        *(GPT_OSS, 108081119232, "block-size=16", "max-num-batched-tokens=8192"),
        *("max-model-len=131072", "no-async-scheduling"),
    ),
    # vllm-project/recipes, Kimi-K2-Think: 46.80 GiB on eight H200s
    "kimi": question(KIMI, 46.80 * GIB, "block-size=64", "max-model-len=131072"),
    # github.com/vllm-project/vllm/issues/53749: "attention block size to 2096 tokens"
    "nemotron": question(NEMOTRON, 40 * GIB, "max-model-len=32768"),
    "whole": question(TINY, 64 * 2**20, "max-model-len=4096"),
    "two ranks": question(TINY, 64 * 2**20, "max-model-len=4096", "tensor-parallel-size=2"),
    "eight ranks": question(TINY, 64 * 2**20, "max-model-len=4096", "tensor-parallel-size=8"),
    "three stages": question(TINY, 64 * 2**20, "max-model-len=4096", "pipeline-parallel-size=3"),
    "too little": question(TINY, 2**20),
    "no such flag": question(TINY, 64 * 2**20, "no-such-flag=3"),
    "strange": question(TINY | {"architectures": ["Strange"]}, 64 * 2**20),
    "of the GPU": question(TINY, None),
    "too large": replace(
        question(LLAMA | {"num_hidden_layers": 320}, None, "max-model-len=4096"),
        gpus=1,
        advise=True,
        kv_heads=8,
    ),
    "encoder": question(
        TINY | {"model_type": "bert", "architectures": ["BertModel"]}, 64 * 2**20, "dtype=float16"
    ),
    "of its own type": question(
        TINY | {"model_type": "of-its-own-code", "auto_map": {"AutoConfig": "own.Config"}},
        64 * 2**20,
    ),
    "of the server": question(TINY, 64 * 2**20, "port=8000", "api-key=x"),
    "files": replace(
        question(TINY, None, "tensor-parallel-size=2"),
        checkpoint=Checkpoint(30 * 10**6, 10**6, "the files"),
    ),
    "damaged files": replace(question(TINY, None), checkpoint=Checkpoint(0, 0, "", "x: no header")),
    "images": question(IMAGES, 8 * GIB, "max-model-len=8192"),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[], Answer]]:
    """The answers of one process, kept nowhere else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return dict(zip(QUESTIONS, ask_all([*QUESTIONS.values()]), strict=True))


Answers = dict[str, Callable[[], Answer]]


def test_blocks_are_those_that_gpus_logged(answers: Answers) -> None:
    llama, gpt_oss, kimi = (answers[name]().plan for name in ("llama", "gpt-oss", "kimi"))
    assert (llama.blocks, round(llama.max_concurrency, 2)) == (1952, 1.56)
    assert (gpt_oss.blocks, round(gpt_oss.max_concurrency, 2)) == (732_972, 84.12)
    assert (kimi.blocks, kimi.capacity_tokens) == (11_173, 715_072)


def test_states_set_the_block_size_of_attention_as_on_a_gpu(answers: Answers) -> None:
    groups = answers["nemotron"]().plan.groups
    assert {group.block_tokens for group in groups if group.kind == "FullAttention"} == {2096}


def test_ranks_divide_heads_until_each_keeps_one(answers: Answers) -> None:
    whole, two, eight = (answers[n]().plan for n in ("whole", "two ranks", "eight ranks"))
    assert whole.block_bytes == 2 * two.block_bytes == 2 * eight.block_bytes
    assert two.blocks == eight.blocks == 2 * whole.blocks


def test_stages_divide_layers_and_the_fullest_decides(answers: Answers) -> None:
    plan = answers["three stages"]().plan
    assert [rank.layers for rank in plan.ranks] == [2, 2, 2]
    assert plan.blocks == min(rank.blocks for rank in plan.ranks)
    assert plan.blocks // 3 == answers["whole"]().plan.blocks


def test_weights_are_those_of_the_layers_in_their_number_type(answers: Answers) -> None:
    attention, products = 2 * 512 * 512 + 2 * 512 * 128, 3 * 512 * 1024
    weights = 6 * (attention + products + 2 * 512) + 512
    embeddings = 2 * 512 * 512
    plan = answers["whole"]().plan
    assert plan.weights == weights
    positions, scales = (
        4096 * 64,
        6 * 4,
    )  # cosine and sine; in float32: of Q, K, V and probabilities
    assert plan.ranks[0].weight_bytes == 2 * (weights + embeddings + positions) + 4 * scales


def test_weights_for_images_are_counted_though_the_plan_is_for_text(answers: Answers) -> None:
    """vLLM 0.22 logged 15.67 GiB for these layers (data/startup_logs.yaml, typhoon-ocr-7b)."""
    answer = answers["images"]()
    assert answer.plan.ranks[0].weight_bytes / GIB == pytest.approx(15.67, rel=0.01)
    assert answer.memory["encoder_bytes"] / GIB == pytest.approx(1.3, abs=0.1)
    assert answer.plan.weights < 7.7e9 - answer.memory["encoder_bytes"] / 2
    (note,) = answer.notes
    assert "without vision_config" in note


def test_weights_are_those_of_the_checkpoint_where_its_files_are(answers: Answers) -> None:
    answer = answers["files"]()
    (rank,) = answer.memory["ranks"]
    assert 0.5 <= rank["weight_bytes"] / (2 * 30e6 + 1e6) < 0.51
    (note,) = answer.notes
    assert note.startswith("weights are those of the files: 0.06 GiB, ")
    whole, damaged = answers["of the GPU"](), answers["damaged files"]()
    assert damaged.memory["ranks"] == whole.memory["ranks"]
    assert [*damaged.notes] == ["x: no header; weights are counted from config.json"]


def test_memory_of_the_gpu_that_is_left_is_the_cache_s(answers: Answers) -> None:
    answer = answers["of the GPU"]()
    (rank,) = answer.memory["ranks"]
    assert rank["kv_bytes"] == answer.plan.memory_bytes
    spent = rank["weight_bytes"] + rank["activation_bytes"] + rank["other_bytes"]
    assert rank["kv_bytes"] + spent == rank["usable_bytes"] < gpu_of("h100").memory_bytes


def test_a_cache_that_holds_no_request_is_planned_for_what_fits(answers: Answers) -> None:
    answer = answers["too little"]()
    assert answer.refused
    assert "max seq len (4096)" in answer.refused
    assert 0 < answer.plan.max_model_len < 4096


def test_weights_that_do_not_fit_are_an_answer_with_the_gpus_that_do(answers: Answers) -> None:
    answer = answers["too large"]()
    assert answer.refused == ("the weights of each GPU take 132.0 GiB, and vLLM may use 72.9 GiB.")
    plan, whole = answer.plan, answers["llama"]().plan
    assert (plan.blocks, plan.max_concurrency) == (0, 0)
    assert plan.block_bytes == 10 * whole.block_bytes
    assert plan.held[0] == whole.held[0]
    flags = {variant.setting: variant.requests for variant in answer.variants}
    assert flags["--gpus 4"] > 0  # two have room for the weights, and not for a request of 4,096
    assert "gpu_memory_utilization=0.95" not in flags


def test_a_type_that_only_own_code_knows_is_planned_by_its_architecture(answers: Answers) -> None:
    answer = answers["of its own type"]()
    assert answer.plan.groups == answers["of the server"]().plan.groups
    assert "auto_map" in answer.notes[0]


@pytest.mark.thorough
def test_numbers_of_four_bits_take_their_own_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a B200, whose backend (FlashInfer) takes them: 4 bits, and 8 bits of scale for each 16."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = question(LLAMA, 8 * GIB, "max-model-len=4096", "block-size=16")
    four = replace(asked, arguments=[*asked.arguments, "--kv-cache-dtype=nvfp4"])
    whole, packed = (
        ask().plan for ask in ask_all([replace(q, gpu=gpu_of("b200")) for q in (asked, four)])
    )
    assert packed.block_bytes / whole.block_bytes == (4 + 8 / 16) / 16


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no such flag", "'no_such_flag' is no argument of `vllm serve`;"),
        ("encoder", "it has no KV cache, as vLLM plans it"),
        ("strange", "architectures ['Strange'] are not supported"),
    ],
)
def test_what_vllm_refuses_is_a_sentence(answers: Answers, name: str, told: str) -> None:
    with pytest.raises(BadInput) as refused:
        answers[name]()
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
