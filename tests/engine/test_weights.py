"""The random weights must make a damaged KV cache visible, or no test of the cache can fail."""

import os
import subprocess
import sys

import pytest

from kvscope.plan.grid import expand
from kvscope.run.environment import measured_environment

from .conftest import AMPLE, ROOT, SMALL

pytestmark = pytest.mark.engine

# Serves the same requests twice, the second time with the cache of one layer zeroed midway.
PROGRAM = """
import sys
from kvscope.engine.build import running
from kvscope.plan.experiment import load
from kvscope.run.serving import serve
from kvscope.workload.requests import build
from pathlib import Path

class Silent:
    def advance(self, tokens): pass

experiment = load(Path(sys.argv[1]))
requests = build(experiment)
with running(experiment) as engine:
    good = serve(engine, requests, Silent()).outputs
    again = serve(engine, requests, Silent()).outputs
    step, count = engine.vllm.step, 0
    def damaging_step():
        global count
        count += 1
        if count == 20:
            caches = engine.vllm.model_executor.driver_worker.worker.model_runner.kv_caches
            caches[1].zero_()
        return step()
    engine.vllm.step = damaging_step
    damaged = serve(engine, requests, Silent()).outputs
print("RESULT", good == again, sum(good[i] != damaged[i] for i in good), len(good))
"""


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-gqa", "tiny-opt"])
def test_a_damaged_cache_changes_the_tokens(model, tmp_path, run):
    from kvscope.plan.experiment import dump

    experiment = expand(None, [*SMALL, AMPLE, f"model={model}"], ROOT / "config").experiments[0]
    file = tmp_path / "experiment.yaml"
    file.write_text(dump(experiment.experiment), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file)],
        capture_output=True,
        text=True,
        env=os.environ | measured_environment(experiment.experiment),
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert lines, done.stderr[-3000:]
    _, repeatable, changed, requests = lines[0].split()
    assert repeatable == "True"
    assert int(changed) > int(requests) / 2
