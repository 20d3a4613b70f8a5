"""By the configuration, models of other families keep in a cache what vLLM plans."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kvscope.plan.composition import Composer
from kvscope.plan.models import BYTES, Model
from kvscope.tables.kv_plan import keeps_state
from tests.engine.conftest import ROOT, kvscope

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
def test_layers_keep_what_vllm_plans(name: str, dtype: str, tmp_path: Path) -> None:
    model = model_of(name)
    (tmp_path / "config.json").write_text(json.dumps(model.hf_config()))
    words = ("max_model_len=1024", "enable_prefix_caching=false", f"dtype={model.dtype}")
    more = ("block_size=32", f"kv_cache_dtype={dtype}", "--memory", "1GiB", "--tokens", "64")
    done = kvscope("bytes", "--gpu", "cpu", str(tmp_path), *words, *more, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    size = max(0 if one["state"] else one["block_tokens"] for one in result["groups"])
    groups = model.kv_groups(size, BYTES[model.dtype if dtype == "auto" else dtype])
    planned = [asdict(group) | {"state": keeps_state(group)} for group in groups]
    assert sorted(map(shape, result["groups"])) == sorted(map(shape, planned))
    assert result["weights"] == model.weights_per_token


def shape(group: dict[str, Any]) -> list[str]:
    """A KV group as text; vLLM's states are blocks of the longest request."""
    left_out = {"block_tokens"} if group["state"] else set()
    return sorted(str(pair) for pair in group.items() if pair[0] not in left_out)
