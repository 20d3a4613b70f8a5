"""The driver of the published FlexGen gets the tokens that kvscope's own engine gets."""

import hashlib
import importlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvscope.plan import layers
from kvscope.plan.experiment import Experiment, dump
from kvscope.plan.grid import expand
from kvscope.workload.requests import build
from kvscope_offload.cost import CostModel
from kvscope_offload.policies.kv_only import KvOnly
from kvscope_offload.tensor_engine import Generated, TensorEngine
from kvscope_offload.weights import seeded

pytestmark = pytest.mark.slow

BENCH = Path(__file__).parents[2] / "bench"
BASE = (
    *("device=offload_cuda", "device.policy=flexgen", "engine.attention=torch", "model=tiny-opt"),
    *("model.dtype=float16", "workload=fixed", "workload.num_requests=8", "profiler=none"),
    *("workload.prompt_tokens=21", "workload.output_tokens=6", "cache.blocks=64", "repeats=3"),
)
REQUESTS, PROMPT, OUTPUT, HIDDEN, LAYERS = 8, 21, 6, 256, 4
WIDTH = 4  # bytes of a float32
TOKEN = 2 * HIDDEN * LAYERS * WIDTH  # bytes of a token's K and V


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny products on several threads take longer to meet than to compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def crossed(require, one_thread, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """FlexGen runs without a GPU; the bytes that cross between its devices."""
    present = find_spec("flexgen") is not None
    require("FlexGen", present, "run `pip install --no-deps -r envs/dev.txt`")
    from no_gpu import without_gpu

    return without_gpu(monkeypatch)


@pytest.fixture
def driver(crossed, monkeypatch: pytest.MonkeyPatch) -> Any:
    from no_gpu import pinned

    monkeypatch.syspath_prepend(BENCH)
    module = importlib.import_module("flexgen_wheel")
    monkeypatch.setattr(module, "seeded", lambda seed, _, dtype: weights(seed, dtype))
    host: Any = lambda shape, dtype, **_: pinned(torch.zeros(shape, dtype=dtype))  # noqa: E731
    monkeypatch.setattr(module, "host_tensor", host)
    return module


def weights(seed: int, dtype: torch.dtype) -> Any:
    return seeded(seed, torch.device("cpu"), dtype)


def planned(*overrides: str) -> Experiment:
    keys = {word.partition("=")[0]: word for word in (*BASE, *overrides)}
    return expand(None, [*keys.values()], layers.SHIPPED_CONFIG).experiments[0].experiment


def kvscopes(experiment: Experiment) -> Generated:
    """Results of kvscope's engine in float32 with the weights of float16."""
    model = experiment.model.model_copy(update={"dtype": "float32"})
    drawn = weights(experiment.seed, torch.float16)
    engine = TensorEngine(
        model,
        KvOnly(name="kv_only", host_gib=1.0),
        source=lambda name, shape: drawn(name, shape).float(),
        cost=CostModel.of_rates(model, 1e9, 1e11, 1e10),
        overlap=False,
    )
    requests = build(experiment)
    try:
        prompts = [request.prompt_token_ids.tolist() for request in requests]
        return engine.generate(prompts, [request.output_tokens for request in requests])
    finally:
        engine.close()


def run(driver: Any, experiment: Experiment, directory: Path, *rows: str) -> dict[str, Any]:
    """Output of the driver."""
    file = directory / "experiment.yaml"
    file.write_text(dump(experiment))
    assert driver.main([str(file), "--out", str(directory), "--rows", *rows]) == 0
    result: dict[str, Any] = json.loads((directory / f"{experiment.id}.json").read_text())
    return result


def digest(found: Generated) -> str:
    tokens = np.array([found.tokens[number] for number in sorted(found.tokens)])
    assert len(np.unique(tokens)) > OUTPUT  # a model that says one thing compares nothing
    return hashlib.sha256(tokens.astype("<i4").tobytes()).hexdigest()


@pytest.mark.parametrize("minibatches", [1, 2, 4])
def test_tokens_are_those_of_kvscopes_engine(driver, tmp_path, minibatches):
    own = (f"device.minibatches={minibatches}", f"seed={minibatches}")
    experiment = planned("repeats=1", "warmup=0", *own)
    expected = digest(kvscopes(experiment))
    result = run(driver, experiment, tmp_path, *driver.ROWS)
    assert [*result["rows"]] == ["published", "pinned", "cpu_attention"]
    for row in result["rows"].values():
        assert row["output_sha256"] == expected


def test_it_loads_as_kvscope_does_except_for_the_newest_tokens_place(driver, crossed, tmp_path):
    """FlexGen loads a row for the newest token, too, and then overwrites it."""
    experiment = planned("repeats=1", "warmup=0")
    own = kvscopes(experiment)
    run(driver, experiment, tmp_path, "published")
    loaded = crossed["CPU to CUDA, pageable"]
    assert loaded == own.copied["kv"] + REQUESTS * (OUTPUT - 1) * TOKEN
    assert crossed["CUDA to CPU, pageable"] == REQUESTS * (PROMPT + OUTPUT - 2) * TOKEN
    assert loaded == REQUESTS * TOKEN * sum(PROMPT + i for i in range(1, OUTPUT))


@pytest.mark.parametrize("weights", ["streamed", "resident"])
def test_rows_differ_in_what_crosses_how(driver, crossed, tmp_path, weights):
    experiment = planned("repeats=1", "warmup=0", f"device.weights={weights}")
    run(driver, experiment, tmp_path, "pinned")
    model = experiment.model
    kv = REQUESTS * TOKEN * sum(PROMPT + i for i in range(1, OUTPUT))
    pass_weights = (model.parameters + model.vocab_size * HIDDEN) * WIDTH  # the embedding twice
    streamed = OUTPUT * pass_weights if weights == "streamed" else 0
    assert crossed["CPU to CUDA, pinned"] == kv + streamed
    assert not crossed["CPU to CUDA, pageable"]
    crossed.clear()
    run(driver, experiment, tmp_path, "cpu_attention")
    assert crossed["CPU to CUDA, pageable"] < TOKEN  # the masks alone
    assert crossed["CPU to CPU, pageable"] >= REQUESTS * TOKEN * PROMPT * (OUTPUT - 1)


def test_a_row_has_repeats_and_their_intervals(driver, tmp_path):
    experiment = planned("repeats=3")
    result = run(driver, experiment, tmp_path, "pinned")
    [row] = result["rows"].values()
    assert [len(passes) for passes in row["passes_s"]] == [OUTPUT] * 3
    costs = importlib.import_module("flexgen.timer").timers("generate").costs  # as FlexGen has them
    assert all(ours >= own for ours, own in zip(row["passes_s"][-1], costs, strict=True))
    makespans = [sum(passes) for passes in row["passes_s"]]
    metrics = row["metrics"]
    assert metrics["makespan_s"]["value"] == pytest.approx(sum(makespans) / 3)
    rates = [REQUESTS * OUTPUT / makespan for makespan in makespans]
    rate = metrics["output_throughput_tokens_per_s"]
    assert rate["value"] == pytest.approx(sum(rates) / 3)
    assert rate["ci_low"] < rate["value"] < rate["ci_high"]
    decoded = [REQUESTS * (OUTPUT - 1) / sum(passes[1:]) for passes in row["passes_s"]]
    assert metrics["decode_throughput_tokens_per_s"]["value"] == pytest.approx(sum(decoded) / 3)
    assert result["workload"]["gpu_batch_size"] * result["workload"]["gpu_batches"] == REQUESTS
    assert result["flexgen"]["version"] == "0.1.8"
    assert result["external"]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["device=offload"], r"device.name \(offload\) must be offload_cuda"),
        (["model.dtype=float32"], "FlexGen serves OPT in float16 .*tiny-opt .*float32"),
        (["model=tiny-llama"], "FlexGen serves OPT in float16 .*tiny-llama"),
        (["workload.num_requests=6"], r"workload.num_requests \(6\) must be a multiple"),
        (["device.device_gib=0.001"], "keep all K and V on the host"),
        (["device.policy=gpu_kv"], "keep all K and V on the host"),
        (["engine.max_num_seqs=4"], "as one batch: raise engine.max_num_seqs"),
        (
            [
                "cache.blocks=34",
                "cache.block_size=16",
                "engine.max_model_len=64",
                "workload.num_requests=32",
            ],
            "as one batch: raise .*cache.blocks",
        ),
        (["workload.arrival=poisson", "workload.rate_per_s=9"], "that arrive at once"),
    ],
)
def test_settings_that_flexgen_lacks_are_refused(driver, tmp_path, capsys, overrides, sentence):
    file = tmp_path / "experiment.yaml"
    file.write_text(dump(planned(*overrides)))
    assert driver.main([str(file), "--out", str(tmp_path)]) == 2
    assert re.search(sentence, capsys.readouterr().err)


def test_another_flexgen_is_refused(driver, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(driver, "code_sha256", lambda: "0" * 64)
    assert driver.main([str(tmp_path / "none.yaml"), "--out", str(tmp_path)]) == 1
    assert "is not the published wheel 0.1.8" in capsys.readouterr().err
