"""The offload engine as a device: settings of its policies, and refusals."""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from kvscope.base.errors import BadInput
from kvscope.cli import completion
from kvscope.engine.devices.platform import platform_of
from kvscope.engine.marks import Marks
from kvscope.engine.recording import PassRecord, Recording
from kvscope.plan import layers
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.workload.requests import build
from kvscope_model.device import Modeled
from kvscope_offload.blocks import Sequence
from kvscope_offload.device import OffloadCpu, OffloadDevice, OffloadModeled
from kvscope_offload.platform import refuse_timeout
from kvscope_offload.policies import POLICIES

CONFIG = layers.SHIPPED_CONFIG
BASE = ("model=tiny-opt", "device=offload", "engine.attention=torch")


def planned(*overrides: str) -> Experiment:
    return expand(None, [*BASE, "cache.blocks=64", *overrides], CONFIG).experiments[0].experiment


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_an_option_of_the_device(policy):
    device = planned(f"device.policy={policy}").device
    assert isinstance(device, OffloadDevice)
    made = device.offload_policy(2**30)
    assert made.name == policy
    assert made.host_gib == 1


def test_keys_of_the_device_are_those_of_its_policy():
    overrides = ("device.share=0.3", "device.buffers=3", "device.weights=resident")
    device = planned(*overrides).device
    assert isinstance(device, OffloadDevice)
    made: Any = device.offload_policy(2**30)
    assert (made.share, made.schedule.buffers, made.streamed) == (0.3, 3, False)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["device.policy=both"], r"device.policy \(both\) must be one of gpu_kv, .*hybrid"),
        (["device=offload_modeled", "device.policy=both"], r"device.policy \(both\) must be one"),
        (["device.policy=kv_only", "device.share=0.5"], "device.share must be null with .*kv_only"),
        (["device.policy=token", "device.buffers=1"], "device.buffers must be null with .*token"),
        (["device.share=1.5"], "device.share"),
        (["engine.attention=vllm"], r"engine.attention \(vllm\) must be torch on device offload"),
        (["device=offload_cuda", "device.link_gb_per_s=1"], "link_gb_per_s"),
    ],
)
def test_impossible_settings_are_refused_in_words(overrides, sentence):
    keys = {word.partition("=")[0]: word for word in (*BASE, "cache.blocks=64", *overrides)}
    with pytest.raises(BadInput, match=sentence):
        expand(None, [*keys.values()], CONFIG)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [("arrival", "passes", "not be 'passes'"), ("timeout_s", 3.0, "be null")],
)
def test_settings_that_would_change_a_computed_batch_are_refused(key, value, words):
    asked = planned()
    refuse_timeout(asked)
    workload = asked.workload.model_copy(update={key: value})
    with pytest.raises(BadInput, match=rf"workload\.{key} .*must {words} on device offload, "):
        refuse_timeout(asked.model_copy(update={"workload": workload}))


def test_a_gpu_is_reserved_for_the_gpu_alone():
    on_gpu = expand(
        None, ["model=tiny-opt", "device=offload_cuda", "engine.attention=torch"], CONFIG
    )
    assert on_gpu.experiments[0].experiment.device.gpus == 1
    assert planned().device.gpus == 0


def test_host_memory_holds_the_context_and_streamed_weights_once():
    def needed(*overrides: str) -> tuple[Experiment, int]:
        words = ["model=opt-13b", "device=offload_cuda", "engine.attention=torch", *overrides]
        result = expand(None, [*words, "cache.blocks=4160"], CONFIG).experiments[0].experiment
        return result, result.device.memory_bytes(result)

    streamed, most = needed()
    _, least = needed("device.weights=resident")
    context = 4160 * streamed.block_bytes
    assert (most, least) == (context + streamed.model.weight_bytes, context)


def test_a_setting_of_the_policy_makes_another_experiment():
    ids = {planned(*words).id for words in ([], ["device.share=0.5"], ["device.buffers=1"])}
    assert len(ids) == 3


@pytest.mark.parametrize("study", ["hybrid", "hybrid-cpu", "hybrid-cuda"])
def test_the_studies_can_be_planned(study):
    result = expand(study, [], CONFIG)
    policies = {e.experiment.device.model_dump()["policy"] for e in result.experiments}
    assert {"kv_only", "act_only", "hybrid"} <= policies


MODELED = (
    *("model=opt-6.7b", "device=offload_modeled", "engine.attention=torch", "workload=fixed"),
    *("workload.num_requests=8", "workload.prompt_tokens=200", "workload.output_tokens=6"),
    *("engine.max_model_len=256", "engine.max_num_seqs=8", "cache.block_size=16"),
    "cache.blocks=128",
)


def modeled(*overrides: str) -> Experiment:
    words = {word.partition("=")[0]: word for word in (*MODELED, *overrides)}
    return expand(None, [*words.values()], CONFIG).experiments[0].experiment


def passes_s(directory: Path, *overrides: str) -> list[float]:
    """Seconds of the modeled passes, by the clock of a server that is served one batch."""
    passes = served(directory, modeled(*overrides))
    return [(record.end_ns - record.schedule_start_ns) * 1e-9 for record in passes]


def served(directory: Path, experiment: Experiment) -> list[PassRecord]:
    """The records of the modeled passes that serve an experiment's requests."""
    platform = platform_of(experiment)
    with platform.run_engine(directory) as server:
        recording = Recording()
        server.begin(recording, Marks())
        for request in build(experiment):
            server.submit(
                request.request_id, request.prompt_token_ids.tolist(), request.output_tokens
            )
        while server.has_unfinished_requests():
            server.step()
    return recording.passes


# Numbers of a token in a layer, by hand: OPT-6.7B has 32 heads of 128, K and V for each, and hidden
# states of 4096; Llama 3.1 8B shares 8 K and V heads among 32.
KEPT = {
    "opt-6.7b": {"kv_only": 2 * 32 * 128, "act_only": 4096},
    "llama-3.1-8b": {"kv_only": 2 * 8 * 128, "act_only": 4096},
}


@pytest.mark.parametrize("model", KEPT)
@pytest.mark.parametrize("policy", ["kv_only", "act_only"])
def test_the_context_takes_the_bytes_of_what_is_kept_of_it(model, policy, tmp_path):
    """Activations take half the bytes of K and V in a multi-head model, twice in this grouped
    model."""
    passes = served(
        tmp_path, modeled(f"device.policy={policy}", f"model={model}", "cache.blocks=256")
    )
    layers, width, block = 32, 2, 16
    blocks = [8 * -(-(200 + number) // block) for number in range(len(passes))]
    size = layers * width * block * KEPT[model][policy]
    assert [record.context_bytes for record in passes] == [count * size for count in blocks]


@pytest.mark.parametrize(("share", "kept"), [(0.0, 26), (0.25, 23), (0.75, 16), (1.0, 13)])
def test_a_hybrid_cache_takes_the_bytes_of_each_kind_of_its_blocks(share, kept, tmp_path):
    """A prompt of 208 tokens has 13 blocks, in halves of K and V's bytes 26 … 13."""
    words = ("device.policy=hybrid", f"device.share={share}", "workload.prompt_tokens=208")
    first, *_ = served(tmp_path, modeled(*words, "workload.num_requests=1"))
    half = 32 * 2 * 16 * 4096
    assert first.context_bytes == kept * half


def test_tokens_that_are_computed_again_take_no_bytes(tmp_path):
    words = ("device.policy=token", "device.share=0.5", "workload.prompt_tokens=224")
    first, *_ = served(tmp_path, modeled(*words, "workload.num_requests=1"))
    assert first.context_bytes == 7 * 32 * 2 * 16 * 2 * 4096


def test_bytes_are_the_same_wherever_the_blocks_lie(tmp_path):
    """On the host, or in part on the device."""
    rooms = (f"device.device_gib={gib}" for gib in ("null", "0.05", "0.3"))
    passes = [served(tmp_path, modeled("device.policy=act_only", room)) for room in rooms]
    assert len({tuple(record.context_bytes for record in each) for each in passes}) == 1


def test_modeled_passes_always_take_the_simulated_time(tmp_path):
    first, again = passes_s(tmp_path), passes_s(tmp_path)
    assert first == again
    assert len(first) == 6
    assert min(first) > 0


def test_a_modeled_pass_streams_the_weights_at_the_rate_of_the_link(tmp_path):
    """With hardly any context: all weights of the layers over 26 GB/s."""
    *_, last = passes_s(tmp_path, "device.policy=kv_only", "workload.prompt_tokens=1")
    weights = 32 * (12 * 4096**2 + 13 * 4096) * 2
    assert last == pytest.approx(weights / 26e9, rel=0.01)
    *_, faster = passes_s(
        tmp_path,
        *("device.policy=kv_only", "workload.prompt_tokens=1"),
        "device.constants={pinned_in_bytes_per_s:52.0e9}",
    )
    assert faster == pytest.approx(last / 2, rel=0.01)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["device.weights=resident", "model=opt-30b"], r"must fit into the 24\.0 GB"),
        (["device.device_gib=30"], r"must fit into the 24\.0 GB of device.hardware=rtx-4090"),
        (["device.hardware=rtx-4099"], "device.hardware is 'rtx-4099'"),
        (["device.constants={speed:1}"], "device.constants.speed"),
    ],
)
def test_experiments_too_large_for_the_modeled_gpu_are_refused(overrides, sentence):
    with pytest.raises(BadInput, match=sentence):
        modeled(*overrides)


def test_the_last_output_token_needs_no_place() -> None:
    """Its K and V are never read, as no token follows it."""
    assert Sequence(0, prompt_tokens=4, output_tokens=5, block_size=4).total_tokens == 8


def test_the_documentation_has_a_row_for_every_key():
    text = (Path(__file__).parents[2] / "docs" / "OFFLOAD.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    documented = {word for row in rows for word in row.split("`")[1::2]}
    own = {f"device.{key}" for kind in (OffloadCpu, OffloadModeled) for key in kind.model_fields}
    of_modeled = {f"device.{key}" for key in Modeled.model_fields}
    assert own - of_modeled <= documented


@pytest.mark.parametrize("module", ["device", "simulation", "policies.hybrid", "platform"])
def test_modules_of_the_planner_need_neither_torch_nor_vllm(module):
    program = f"import sys, kvscope_offload.{module}; print({{'torch', 'vllm'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_keys_of_the_device_are_completed():
    given = Namespace(config_dir=CONFIG)
    assert "device.policy=" in completion.overrides("device.", given)
    assert completion.overrides("device.weights=", given) == [
        "device.weights=streamed",
        "device.weights=resident",
    ]
