"""Results of `kvscope bytes` for a plan: bytes, FLOPs, and where swap and recompute cross."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_plans import FULL, PLAN, WINDOW

from kvscope.cli import main as cli
from kvscope.tables.kv_bytes import AttentionLayers, HeldBlocks, KvPlan, pairs
from kvscope_model.hardware import hardware
from kvscope_model.report.kv_bytes import Losses, lengths
from kvscope_model.report.picture import picture
from kvscope_model.report.text import bytes_words


def losses(plan: KvPlan = PLAN, *links: float) -> Losses:
    asked = [256, 512, 8192]
    return Losses(plan, asked, "a100-80gb", hardware.read("a100-80gb"), links or (26.0,))


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("window", [None, 1, 64])
def test_pairs_are_those_within_the_window(tokens: int, window: int | None) -> None:
    reach = window or tokens
    counted = sum(1 for one in range(tokens) for other in range(one + 1) if one - other < reach)
    assert pairs(tokens, window) == counted


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 50])
def test_a_token_attends_to_earlier_tokens_of_its_chunk(tokens: int) -> None:
    places = ((one, other) for one in range(tokens) for other in range(one + 1))
    counted = sum(1 for one, other in places if one // 16 == other // 16)
    assert AttentionLayers(4, chunk_tokens=16).flops(tokens) == 4 * counted


def test_bytes_of_a_request_are_those_of_its_blocks() -> None:
    held = PLAN.held[0]
    assert held
    assert PLAN.useful_bytes(held) == 10 * 4096 + 16 * 2048
    assert PLAN.padding_bytes(held) == 16 * 2048
    assert PLAN.reserved_bytes(held) == 26 * 8192
    assert PLAN.requests(held) == 1 + (100 - 48) // 26
    assert PLAN.swap_bytes(held) == 2 * PLAN.useful_bytes(held)


def test_slots_behind_the_newest_token_are_empty() -> None:
    held = HeldBlocks(250, (5, 5, 16), (16, 16, 16))
    empty = 6 * (256 + 256 + 128)
    assert PLAN.empty_bytes(held) == empty
    assert PLAN.useful_bytes(held) == 10 * 4096 + 16 * 2048 - empty
    parts = PLAN.useful_bytes(held) + PLAN.empty_bytes(held) + PLAN.padding_bytes(held)
    unused = 10 * (8192 - 4096) + 16 * (8192 - 4096)
    assert parts + unused == PLAN.reserved_bytes(held)


def test_a_state_has_no_empty_slots() -> None:
    states = replace(PLAN, groups=tuple(replace(group, kind="Mamba") for group in PLAN.groups))
    assert states.empty_bytes(HeldBlocks(250, (1, 1, 1), (1, 1, 1))) == 0


def test_requests_at_once_are_at_most_those_of_a_pass() -> None:
    held = PLAN.held[0]
    assert held
    assert replace(PLAN, max_num_seqs=2).requests(held) == 2
    assert replace(PLAN, blocks=48).requests(held) == 0  # a prefill has no room


def test_flops_are_two_per_weight_and_those_of_attention_pairs() -> None:
    expected = 2 * 1_000 * 256 + 8 * (pairs(256) + pairs(256, 64))
    assert PLAN.recompute_flops(256) == expected


def test_swap_wins_where_its_seconds_are_fewer() -> None:
    result = losses()
    for held in filter(None, PLAN.held):
        recompute_s = result.recompute_s(held.tokens)
        even = PLAN.swap_bytes(held) / recompute_s / 1e9
        assert result.swap_s(held, even) == pytest.approx(recompute_s)
    first, second = (
        PLAN.swap_bytes(one) / result.recompute_s(one.tokens) / 1e9 for one in PLAN.held if one
    )
    assert second < first  # attention grows with the square, contents do not
    assert result.crossing(0.9 * second) == "at no length up to 512 tokens"
    assert result.crossing((first + second) / 2) == "from about 512 tokens"
    assert result.crossing(1.1 * first) == "at every length from 256 tokens on"


def test_requests_that_cannot_run_have_no_numbers() -> None:
    requests = losses().as_json()["requests"]
    assert [request["runs"] for request in requests] == [True, True, False]
    assert requests[2] == {"tokens": 8192, "runs": False}
    row = next(line for line in losses().lines() if line.startswith("blocks"))
    assert row.split() == ["blocks", "26", "42", "–"]


def test_groups_that_are_alike_are_one_row() -> None:
    lines = [line.split() for line in losses().lines()]
    assert ["2", "×", "SlidingWindow", "2", "16", "64", "4,096", "4,096", "8,192"] in lines
    assert ["FullAttention", "1", "16", "2,048", "4,096", "8,192"] in lines
    state = replace(FULL, kind="Mamba")
    words = "\n".join(losses(replace(PLAN, groups=(WINDOW, WINDOW, state))).lines())
    assert "a state" in words


def test_the_picture_has_every_group_and_length() -> None:
    drawn = picture(losses())
    assert drawn.startswith("<svg")
    assert all(word in drawn for word in ("2 × SlidingWindow", "FullAttention", "256", "512"))


def test_lengths_are_those_asked_for_and_doubled_ones_up_to_them() -> None:
    assert lengths([1000, 300], 2048) == [256, 300, 512, 1000]
    assert lengths([1000], 300) == [256, 1000]


def test_numbers_have_few_digits_and_their_unit() -> None:
    result = [*map(bytes_words, (96, 1024, 1.5 * 2**20, 40 * 2**30))]
    assert result == ["96 bytes", "1 KiB", "1.5 MiB", "40 GiB"]


def test_a_damaged_model_of_the_configuration_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = (Path(__file__).parents[4] / "config/model/tiny-gqa.yaml").read_text()
    (tmp_path / "model").mkdir()
    (tmp_path / "model/mine.yaml").write_text(own.replace("layers: 4", "layers: many", 1))
    assert cli.main(["bytes", "mine", "--config-dir", str(tmp_path)]) == 2
    told = f"layers is 'many' ({tmp_path}/model/mine.yaml) but must be a whole number"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nosuch"], "'nosuch' is no directory with a config.json"),
        (["tiny-gqa", "max-model-len"], "'max-model-len' is no argument of `vllm serve`"),
        (["tiny-gqa", "--picture", "bytes.png"], "'bytes.png' but must end with .svg"),
        (["tiny-gqa", "--hardware", "a100"], "device.hardware is 'a100'"),
        (["tiny-gqa", "--gpu", "h10"], "--gpu is 'h10' (did you mean 'h100'?) but must be one of"),
        (["tiny-gqua"], "did you mean 'tiny-gqa'?"),
        (["{here}/damaged.json"], "damaged.json: it cannot be read as JSON"),
        (["{here}/other"], "no config.json of a model: it has no model_type"),
        (["{here}/list.json"], "it has no object, but a list"),
        (["{here}/m.gguf"], "it has weights; give the config.json of the model"),
        (["{here}/adapter"], "it is of an adapter; give the config.json of its base model"),
        (["{here}"], "a directory without a config.json"),
        (["{here}/deep.json"], "num_hidden_layers is 1,000,000, more than 10,000"),
        (["tiny-gqa", "--gpus", "3", "pp=2"], "--gpus is 3 but pipeline_parallel_size=2 divide 2"),
        (["tiny-gqa", "--gpus", "2", "tp=4"], "--gpus is 2 but tensor_parallel_size=4 divide 4"),
    ],
)
def test_models_that_cannot_be_planned_are_refused_in_a_sentence(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text("{}")
    deep = {"model_type": "llama", "num_hidden_layers": 10**6}
    (tmp_path / "deep.json").write_text(json.dumps(deep))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text(json.dumps({"hidden_size": 3}))
    assert cli.main(["bytes", *(word.format(here=tmp_path) for word in words)]) == 2
    assert told in capsys.readouterr().err.splitlines()[-1]
