"""Needs of an experiment on a GPU in a plan, and refusals for a named GPU."""

import json
from pathlib import Path

import pytest

from kvscope.base.errors import EXIT_BAD_INPUT, EXIT_DONE, BadInput
from kvscope.cli import main as cli
from kvscope.cli import workflow
from kvscope.plan import grid, manifest
from kvscope.plan.experiment import Experiment, dump
from kvscope.plan.gpu_estimate import estimate, memory_bytes, usable_bytes
from kvscope.plan.gpu_memory import GpuMemory, gib_text
from kvscope.plan.needs import GpuNeeds, in_words

CONFIG = Path(__file__).parents[2] / "config"
OF_CONFIG = ["--config-dir", str(CONFIG)]
MIB, GIB = 2**20, 2**30
GPUS = ["a100-40gb", "a100-80gb", "h100", "h200", "rtx-4090"]


def planned(*words: str) -> Experiment:
    return grid.expand(None, ["device=cuda", *words], CONFIG).experiments[0].experiment


def memory(*words: str) -> GpuMemory:
    return estimate(planned(*words))


def needs(*words: str) -> GpuNeeds:
    result = GpuNeeds.of(planned(*words))
    assert result is not None
    return result


# ------------------------------------------------------------------------------------ GPU memory


def test_weights_and_cache_are_those_of_the_settings_and_vllms_null_block() -> None:
    result = memory("model=llama-3.1-8b", "cache.blocks=100", "cache.block_size=16")
    assert result.weight_bytes == 8_030_261_248 * 2
    assert result.cache_bytes == 101 * 16 * (2 * 32 * 8 * 128 * 2)


@pytest.mark.parametrize(
    ("model", "numbers_of_a_token"),
    [
        ("yarn-llama-2-7b", 4 * 4096 + 3 * 11008),
        ("llama-3.1-8b", 4 * 4096 + 3 * 14336),
        ("opt-13b", 5 * 5120 + 2 * 20480),
    ],
)
def test_a_pass_of_many_tokens_holds_its_mlp(model: str, numbers_of_a_token: int) -> None:
    words = ("engine.max_num_batched_tokens=8192", "engine.max_num_seqs=1")
    assert memory(f"model={model}", *words).activation_bytes == 8192 * numbers_of_a_token * 2


def test_many_requests_with_a_large_vocabulary_hold_their_logits() -> None:
    result = memory(
        *("model=llama-3.1-8b", "engine.max_num_batched_tokens=2048", "engine.max_num_seqs=256")
    )
    hidden, logits = 2048 * 2 * 4096 * 2, 256 * 128_256 * (2 + 4 + 4 + 4)
    assert result.activation_bytes == hidden + logits


@pytest.mark.parametrize(
    ("words", "copy_bytes"),
    [
        ((), 0),
        (("overflow=swap",), 0),
        # a request of 1024 tokens, by layer of four or as a whole; 2 KiB a token and layer
        (("overflow=swap", "overflow.copies=coalesced"), 1024 * 2048),
        (("overflow=swap", "overflow.copies=coalesced", "cache.layout=by_block"), 4 * 1024 * 2048),
    ],
)
def test_copies_have_the_gathered_contents(words: tuple[str, ...], copy_bytes: int) -> None:
    assert memory("model=tiny-llama", "engine.max_model_len=1024", *words).copy_bytes == copy_bytes


# ------------------------------------------------------------------------------------- a named GPU


@pytest.mark.parametrize("gpu", GPUS)
def test_all_memory_that_cuda_does_not_take_may_be_used(gpu: str) -> None:
    assert usable_bytes(gpu) == memory_bytes(gpu) - 718_077_952


@pytest.mark.parametrize("gpu", GPUS)
def test_an_experiment_that_just_fits_is_planned_and_a_block_more_is_refused(gpu: str) -> None:
    words = ("model=llama-3.1-8b", "cache.block_size=16", "engine.max_num_seqs=8")
    one = planned(*words, "cache.blocks=1000")
    room = usable_bytes(gpu) - estimate(one).total_bytes
    most = 1000 + room // one.block_bytes
    fits = planned(*words, f"cache.blocks={most}", f"device.hardware={gpu}")
    assert estimate(fits).total_bytes <= usable_bytes(gpu)
    with pytest.raises(BadInput) as refused:
        planned(*words, f"cache.blocks={most + 1}", f"device.hardware={gpu}")
    sentence = str(refused.value)
    assert "\n" not in sentence
    for part in (f"{gpu} that CUDA leaves free", "change cache.blocks", "weights 15.0"):
        assert part in sentence
    planned(*words, f"cache.blocks={most + 1}")  # without a name nothing is refused


def test_more_than_vllm_would_plan_with_fits_tightly(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("model=llama-3.1-8b", "device.hardware=rtx-4090", "cache.block_size=16")
    for blocks, tightly in ((1000, False), (2900, True)):
        one = planned(*words, f"cache.blocks={blocks}")
        share = estimate(one).total_bytes / memory_bytes("rtx-4090")
        assert (share > 0.92) is tightly
        _, said = printed(capsys, "device=cuda", *words, f"cache.blocks={blocks}")
        assert ("fits rtx-4090 (tightly: " in said) is tightly


@pytest.mark.parametrize("name", ["h10", "cpu", "a100"])
def test_an_unknown_gpu_is_refused_in_one_sentence(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "device=cuda", f"device.hardware={name}", *OF_CONFIG]
    assert cli.main(words) == EXIT_BAD_INPUT
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert f"device.hardware is '{name}'" in output
    assert output.index(", ".join(GPUS)) < output.index("change device.hardware (the command line)")


@pytest.mark.parametrize("gpu", GPUS)
def test_the_name_is_neither_in_the_id_nor_in_the_experiments_file(gpu: str) -> None:
    without, named = planned(), planned(f"device.hardware={gpu}")
    assert named.device.usable_bytes == usable_bytes(gpu)
    assert (named.id, dump(named)) == (without.id, dump(without))
    assert named.canonical_json == without.canonical_json


def test_several_gpus_are_one_experiment_that_must_fit_all() -> None:
    plan = grid.expand(None, ["device=cuda", "device.hardware=h100,rtx-4090"], CONFIG)
    assert len(plan.experiments) == 1
    words = ["device=cuda", "model=opt-13b", "device.hardware=h100,rtx-4090"]
    with pytest.raises(BadInput, match=r"device\.hardware=rtx-4090"):
        grid.expand(None, words, CONFIG)


def test_a_finished_run_stays_finished_when_the_gpu_is_named(tmp_path: Path) -> None:
    before = manifest.write(grid.expand(None, ["device=cuda"], CONFIG), tmp_path)
    (entry,) = json.loads(before.read_text())["experiments"]
    file = manifest.experiment_path(entry["id"], tmp_path)
    bytes_before = file.read_bytes()
    manifest.write(grid.expand(None, ["device=cuda", "device.hardware=h100"], CONFIG), tmp_path)
    assert file.read_bytes() == bytes_before
    assert list((tmp_path / "experiments").iterdir()) == [file.parent]


TOO_LARGE = ("device=cuda", "model=opt-13b", "device.hardware=rtx-4090")


def test_snakemake_refuses_what_plan_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *TOO_LARGE, *OF_CONFIG]) == EXIT_BAD_INPUT
    assert len(capsys.readouterr().err.splitlines()) == 1
    with pytest.raises(BadInput, match="must fit into"):
        workflow.plan(workflow.Options(None, TOO_LARGE), CONFIG, tmp_path)
    assert not list(tmp_path.rglob("manifest.json"))


# ---------------------------------------------------------------------------------------- host pool


def test_the_host_pool_is_that_of_the_policy() -> None:
    assert needs().host_pool_bytes == 0
    result = needs("overflow=swap", "overflow.host_gib=4", "overflow.host_memory=pageable")
    assert (result.host_pool_bytes, result.host_memory) == (4 * GIB, "pageable")


def test_without_tracing_there_are_no_events() -> None:
    assert needs().kv_event_bytes == 0


# ------------------------------------------------------------------------------ what a plan prints


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[str], str]:
    """The heading of a plan's table, and its last line."""
    assert cli.main(["plan", *words, *OF_CONFIG]) == EXIT_DONE
    lines = capsys.readouterr().out.splitlines()
    return [cell for cell in lines[0].split("  ") if cell.strip()], lines[-1]


def test_a_plan_without_a_name_says_how_to_name_the_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert "device.hardware=NAME says whether it fits" in printed(capsys, "device=cuda")[1]


@pytest.mark.parametrize(
    ("words", "columns"),
    [
        (("device=cuda",), ["GPU"]),
        (("device=cuda", "overflow=swap,recompute"), ["GPU", "host pool", "overflow"]),
        (("device=cpu", "overflow=swap"), []),
        (("device=dry", "overflow=swap"), []),
        (("device=cpu,cuda",), ["GPU", "device"]),
    ],
)
def test_the_table_has_the_columns_that_matter(
    words: tuple[str, ...], columns: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    heading, said = printed(capsys, *words)
    assert [cell.strip() for cell in heading] == ["id", "time", *columns]
    assert ("GPU memory" in said) == ("GPU" in columns)


def test_the_pool_of_several_is_the_largest() -> None:
    pools = [needs("overflow=swap", f"overflow.host_gib={size}") for size in (2, 4, 3)]
    assert "4.0 GiB of pinned host memory" in in_words(pools)


def test_as_json_other_devices_need_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "device=cpu,dry", "--json", *OF_CONFIG]) == EXIT_DONE
    assert not any("needs" in entry for entry in json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0.0"), (GIB, "1.0"), (69 * MIB, "0.067"), (4321 * GIB, "4,321.0")]
)
def test_sizes_are_gib(size: int, text: str) -> None:
    assert gib_text(size) == text
