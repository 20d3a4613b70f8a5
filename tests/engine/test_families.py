"""Models of other families: their data is vLLM's plan, and their runs give the tokens they must."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from kvscope.engine.devices.platform import platform_of
from kvscope.kv_plan import keeps_state
from kvscope.plan.composition import Composer
from kvscope.plan.grid import expand
from kvscope.plan.models import BYTES, Model

from .conftest import ROOT, Runner, kvscope

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("forked_commands")]

CONFIG = ROOT / "config"


def model_of(name: str) -> Model:
    return Model.model_validate(Composer(CONFIG).compose((("model", name),))["model"])


FAMILIES = [
    path.stem
    for path in sorted((CONFIG / "model").glob("*.yaml"))
    if "family: hf" in path.read_text()
]
OFTEN = ("tiny-interleaved", "tiny-mla", "tiny-hybrid")


def some(names: list[str]) -> list[Any]:
    """These families; all but three only in exhaustive tests."""
    marks = {name: [] if name in OFTEN else [pytest.mark.exhaustive] for name in names}
    return [pytest.param(name, marks=marks[name]) for name in names]


@pytest.mark.parametrize("dtype", ["auto", pytest.param("fp8", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", some(FAMILIES))
def test_what_layers_keep_is_what_vllm_plans(name: str, dtype: str, tmp_path: Path) -> None:
    model = model_of(name)
    (tmp_path / "config.json").write_text(json.dumps(model.hf_config()))
    words = ("max_model_len=1024", "enable_prefix_caching=false", f"dtype={model.dtype}")
    more = ("block_size=32", f"kv_cache_dtype={dtype}", "--memory", "1GiB", "--tokens", "64")
    done = kvscope("bytes", str(tmp_path), *words, *more, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    size = max(0 if one["state"] else one["block_tokens"] for one in found["groups"])
    groups = model.kv_groups(size, BYTES[model.dtype if dtype == "auto" else dtype])
    planned = [asdict(group) | {"state": keeps_state(group)} for group in groups]
    assert sorted(map(shape, found["groups"])) == sorted(map(shape, planned))
    assert found["weights"] == model.weights_per_token


def shape(group: dict[str, Any]) -> list[str]:
    """What a KV group is, as text; vLLM's states are blocks of the longest request."""
    left_out = {"block_tokens"} if group["state"] else set()
    return sorted(str(pair) for pair in group.items() if pair[0] not in left_out)


def test_a_scarce_cache_gives_the_same_tokens(run: Runner) -> None:
    words = ("model=tiny-mqa", "repeats=1", "warmup=0")
    ample, scarce = run(*words, "cache.blocks=400"), run(*words, "cache.blocks=13")
    assert ample.table("preemptions").empty
    assert not scarce.table("preemptions").empty
    assert tokens(scarce.table("requests")) == tokens(ample.table("requests"))


def tokens(requests: pd.DataFrame) -> list[str]:
    """What came out, by request."""
    found: list[str] = requests.sort_values("request_id")["output_sha256"].tolist()
    assert len(set(found)) > 1
    return found


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("model=tiny-mla",), "cache.block_size (32) must be 16 for a latent"),
        (
            ("model=tiny-mla", "cache.block_size=16", "cache.dtype=fp8"),
            "cache.dtype (fp8) must be auto for a latent",
        ),
        (("model=tiny-window", "engine.attention=paged"), "engine.attention (paged) must be vllm"),
        (("cache.dtype=fp8", "engine.attention=paged"), "cache.dtype (fp8) must be auto"),
        (("model=jamba-v0.1",), "cache.block_size (32) must be at least 140"),
        (("model=tiny-interleaved", "cache.blocks=60"), "which takes up to 197 in the KV groups"),
    ],
)
def test_what_cannot_run_is_refused_when_it_is_planned(words: tuple[str, ...], told: str) -> None:
    done = kvscope("plan", *words)
    assert done.returncode == 2
    assert told in done.stderr.splitlines()[-1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("model=tiny-mla", "cache.block_size=16", "engine.max_num_batched_tokens=1024"),
            "engine.max_num_batched_tokens is 1024, but vLLM takes 2048 for model=tiny-mla",
        ),
        (
            ("model=tiny-mla", "cache.block_size=16", "cache.prefix_caching=true"),
            "cache.prefix_caching is true, but vLLM caches no prefixes for model=tiny-mla",
        ),
        (
            (
                "model=tiny-window",
                "model.kv_layers=[{kind: full, layers: 4, token_elements: 128}]",
            ),
            "are SlidingWindow of 4 layers in vLLM's plan, but FullAttention of 4 layers by model",
        ),
        (
            ("model=tiny-window", "device=dry", "cache.block_size=16"),
            "cache.block_size is 16, but vLLM takes blocks of 32 tokens for model=tiny-window",
        ),
    ],
)
def test_what_vllm_takes_otherwise_is_a_sentence(
    words: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    done = kvscope("run", *words, "profiler=none", "--out", str(tmp_path))
    assert done.returncode != 0
    assert told in done.stderr


def test_a_latent_has_the_kernels_of_any_cpu_on_one_with_amx(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    words = ["model=tiny-mla", "cache.block_size=16"]
    asked = expand(None, words, CONFIG).experiments[0].experiment
    backend = AttentionBackendEnum[platform_of(asked).engine_arguments()["attention_backend"]]
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: True)
    latent: Any = SimpleNamespace(use_mla=True, use_sparse=False)
    assert current_platform.get_attn_backend_cls(backend, latent) == backend.get_path()
