"""Models of other families: their runs give the tokens they must, what cannot run is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from kvscope.engine.devices.platform import platform_of
from kvscope.plan.grid import expand

from .conftest import ROOT, Runner, kvscope

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("forked_commands")]

CONFIG = ROOT / "config"


def test_a_scarce_cache_gives_the_same_tokens(run: Runner) -> None:
    words = ("model=tiny-mqa", "repeats=1", "warmup=0")
    ample, scarce = run(*words, "cache.blocks=400"), run(*words, "cache.blocks=13")
    assert ample.table("preemptions").empty
    assert not scarce.table("preemptions").empty
    assert tokens(scarce.table("requests")) == tokens(ample.table("requests"))


def tokens(requests: pd.DataFrame) -> list[str]:
    """Output tokens by request."""
    result: list[str] = requests.sort_values("request_id")["output_sha256"].tolist()
    assert len(set(result)) > 1
    return result


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
def test_impossible_experiments_are_refused_when_planned(words: tuple[str, ...], told: str) -> None:
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
def test_settings_that_vllm_changes_are_refused_in_a_sentence(
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
