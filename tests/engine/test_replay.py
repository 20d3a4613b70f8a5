"""vLLM's scheduler, recorded, and the study of the recording: the same passes."""

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.record.study import write_study
from tests.warm import Warm

from .conftest import ROOT, Silent

pytestmark = [pytest.mark.engine, pytest.mark.thorough]

# Requests that share prefixes, all there from the beginning.
SERVED = (
    *("model=tiny-llama", "device=modeled", "device.hardware=h100", "device.kernels=vllm"),
    *("batching=chunked", "batching.chunk_tokens=256", "engine.max_num_batched_tokens=256"),
    *("workload=mooncake", "workload.arrival=all_at_once", "workload.max_tokens=512"),
    *("workload.block_tokens=24", "workload.num_requests=30", "engine.max_model_len=512"),
    *("engine.max_num_seqs=8", "cache.block_size=16", "cache.layout=by_layer"),
    *("cache.admission=vllm", "cache.watermark=0.0", "cache.prefix_caching=true"),
)
ROOM = {"ample": 2000, "scarce": 60}


def served(experiment: Experiment, directory: Path | None = None) -> tuple[list[Any], int]:
    """The passes of the experiment's requests and their preemptions; recorded into a directory."""
    from kvscope.engine.build import run_engine
    from kvscope.engine.devices.platform import platform_of
    from kvscope.engine.marks import Marks
    from kvscope.engine.recording import Recording
    from kvscope.record.plugin import register
    from kvscope.run.serving import serve
    from kvscope.workload.requests import build

    variables = {} if directory is None else {"KVSCOPE_RECORD": str(directory)}
    with mock.patch.dict(os.environ, variables):
        register()
        with run_engine(platform_of(experiment)) as engine:
            recording = Recording()
            engine.begin(recording, Marks())
            serve(engine, build(experiment), Silent())
    passes = [
        sorted((row.request_id, row.computed, row.cached, row.hit) for row in one.batch())
        for one in recording.passes
    ]
    return passes, len(recording.preemptions)


@pytest.mark.parametrize("room", ROOM)
def test_the_study_of_a_recording_has_its_passes_and_its_hits(
    warm: Warm, tmp_path: Path, room: str
):
    words = [*SERVED, f"cache.blocks={ROOM[room]}"]
    (planned,) = expand(None, words, ROOT / "config").experiments
    recorded = warm.call(served, planned.experiment, tmp_path / "recording")
    study = tmp_path / "study" / "again.yaml"
    write_study(tmp_path / "recording", study, "h100", None)
    (again,) = expand("again", ["workload.arrival=all_at_once"], tmp_path).experiments
    passes, preemptions = recorded
    assert sum(hit for one in passes for *_, hit in one) > 0
    assert (preemptions > 0) == (room == "scarce")
    assert warm.call(served, again.experiment) == recorded
