"""The random weights must make a damaged KV cache visible, or no test of the cache can fail."""

from pathlib import Path
from typing import Any

import pytest

from kvscope.plan.experiment import dump, load
from kvscope.plan.grid import expand
from kvscope.workload.requests import build

from .conftest import AMPLE, ROOT, SMALL, Silent

pytestmark = pytest.mark.engine


def served_thrice(file: Path) -> tuple[bool, int, int]:
    """Serve the same requests three times, at last with the cache of one layer zeroed midway.

    Whether the first two gave the same tokens, how many requests the third gave others, of how
    many.
    """
    from kvscope.engine.devices.platform import platform_of
    from kvscope.engine.vllm.build import run_engine
    from kvscope.run.serving import serve

    experiment = load(file)
    requests = build(experiment)
    with run_engine(platform_of(experiment)) as engine:
        good, again = (serve(engine, requests, Silent()).outputs for _ in range(2))
        step = engine.vllm.step
        passes: list[Any] = []

        def damaging_step():
            passes.append(None)
            if len(passes) == 20:
                worker = engine.vllm.model_executor.driver_worker.worker
                worker.model_runner.kv_caches[1].zero_()
            return step()

        engine.vllm.step = damaging_step
        damaged = serve(engine, requests, Silent()).outputs
    return good == again, sum(good[i] != damaged[i] for i in good), len(good)


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-gqa", "tiny-opt"])
def test_a_damaged_cache_changes_the_tokens(model, tmp_path, warm):
    experiment = expand(None, [*SMALL, AMPLE, f"model={model}"], ROOT / "config").experiments[0]
    file = tmp_path / "experiment.yaml"
    file.write_text(dump(experiment.experiment), encoding="utf-8")
    repeatable, changed, requests = warm.call(served_thrice, file)
    assert repeatable
    assert changed > requests / 2
