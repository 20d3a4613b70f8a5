"""A modeled run's vLLM decides as on the hardware's GPU: its groups are those of a server there."""

from collections import Counter
from unittest import mock

import pytest

from kvscope.judge.checklist import checklist
from kvscope.judge.records import read_records
from kvscope.plan.experiment import load
from kvscope.plan.models import Model
from kvscope.tables.kv_group import KvGroup
from kvscope_model.capacity.gpus import Gpu, gpu_of, gpus
from kvscope_model.capacity.request import Question, ask
from tests.engine.conftest import directory_of
from tests.warm import Warm

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")
pytest.importorskip("triton", reason="triton is not here; run `make env`")

pytestmark = [pytest.mark.engine, pytest.mark.slow]

WORDS = (
    *("device=modeled", "device.kernels=vllm", "device.hardware=h100", "batching=mixed"),
    *("workload=uniform", "workload.num_requests=6", "workload.min_tokens=64"),
    *("workload.max_tokens=256", "engine.max_model_len=256", "cache.admission=vllm"),
)


def server_groups(model: Model, gpu: Gpu) -> tuple[KvGroup, ...]:
    """The KV groups of `vllm serve --block-size=16` on a GPU, as `kvscope bytes` plans it."""
    arguments = [f"--dtype={model.dtype}", "--max-model-len=256", "--block-size=16"]
    arguments.append("--no-enable-prefix-caching")
    asked = Question(model.name, model.hf_config(), arguments, [64], False, 2**36, gpu)
    return ask(asked).plan.groups


def shapes(groups: tuple[KvGroup, ...]) -> Counter[object]:
    """Groups without the tokens of a state's block, which are those of the longest request."""
    return Counter(
        (g.kind, g.layers, g.useful_bytes, g.padded_bytes, g.block_bytes, g.window_tokens)
        for g in groups
    )


@pytest.mark.representative
@pytest.mark.parametrize(
    ("model", "blocks"),
    [("tiny-hybrid", 60), pytest.param("gemma-3-27b", 400, marks=pytest.mark.thorough)],
)
def test_groups_of_a_run_are_those_of_a_server_on_the_gpu(
    model: str, blocks: int, warm: Warm
) -> None:
    directory = directory_of(warm, [*WORDS, f"model={model}", f"cache.blocks={blocks}"], "gpu")
    experiment = load(directory / "experiment.yaml")
    expected = server_groups(Model.of(experiment), gpu_of("h100"))
    assert shapes(experiment.kv_groups) == shapes(expected)
    states = {one.state for one in checklist(read_records(directory))}
    assert "violated" not in states


@pytest.mark.parametrize("name", list(gpus()))
def test_default_limits_are_vllms(name: str) -> None:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    gpu = gpu_of(name)
    platform = mock.Mock(**{"is_cpu.return_value": False, "is_tpu.return_value": False})
    platform.get_device_total_memory.return_value = gpu.memory_bytes
    platform.get_device_name.return_value = gpu.name
    with mock.patch("vllm.engine.arg_utils.current_platform", platform):
        limits = EngineArgs.get_batch_defaults(1)
    server = UsageContext.OPENAI_API_SERVER
    assert gpu.default_limits == tuple(defaults[server] for defaults in limits)
