"""vLLM's scheduler, recorded, and the study of the recording: the same passes.

`test_record` records vLLM's own engine, and has its study served by `served` too.
"""

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope_record.study import write_study
from tests.engine.conftest import ROOT, Silent
from tests.warm import Warm

pytestmark = [pytest.mark.engine, pytest.mark.thorough]

# Requests that share prefixes.
SERVED = (
    *("model=tiny-llama", "device=modeled", "device.hardware=h100", "device.kernels=vllm"),
    *("batching=chunked", "batching.chunk_tokens=256", "engine.max_num_batched_tokens=256"),
    *("workload=mooncake", "workload.max_tokens=512", "workload.block_tokens=24"),
    *("workload.num_requests=30", "engine.max_model_len=512"),
    *("engine.max_num_seqs=8", "cache.block_size=16", "cache.layout=by_layer"),
    *("cache.admission=vllm", "cache.watermark=0.0", "cache.prefix_caching=true"),
)
ROOM = {"ample": 2000, "scarce": 60}
ARRIVALS = {"all_at_once": "all_at_once", "trace": "passes"}
"""Arrivals of the requests, and of those of the study, such that times do not matter."""
Passes = list[tuple[Any, ...]]


def passes_of(recording: Any) -> Passes:
    """Decisions of a scheduler: queue, room and preemptions of each pass, and its batch."""
    return [
        (
            *(record.waiting, record.kv_blocks_free, record.preempted),
            sorted(
                (r.request_id, r.computed, r.cached, r.hit, len(r.sampled)) for r in record.batch()
            ),
        )
        for record in recording.passes
    ]


def served(experiment: Experiment, directory: Path | None = None) -> Passes:
    """The passes of the experiment's requests; recorded into a directory."""
    from kvscope.engine.devices.platform import platform_of
    from kvscope.engine.marks import Marks
    from kvscope.engine.recording import Recording
    from kvscope.engine.vllm.build import run_engine
    from kvscope.run.serving import serve
    from kvscope.workload.requests import build
    from kvscope_record.plugin import register

    variables = {} if directory is None else {"KVSCOPE_RECORD": str(directory)}
    with mock.patch.dict(os.environ, variables):
        register()
        with run_engine(platform_of(experiment)) as engine:
            recording = Recording()
            engine.begin(recording, Marks())
            serve(engine, build(experiment), Silent())
    return passes_of(recording)


@pytest.mark.parametrize("arrival", ARRIVALS)
@pytest.mark.parametrize("room", ROOM)
def test_the_study_of_a_recording_has_its_passes_and_its_hits(
    warm: Warm, tmp_path: Path, room: str, arrival: str
):
    words = [*SERVED, f"cache.blocks={ROOM[room]}", f"workload.arrival={arrival}"]
    words += ["workload.time_scale=2e-6"] * (arrival == "trace")
    (planned,) = expand(None, words, ROOT / "config").experiments
    recorded = warm.call(served, planned.experiment, tmp_path / "recording")
    study = tmp_path / "study" / "again.yaml"
    write_study(tmp_path / "recording", study, "h100", None)
    words = [f"workload.arrival={ARRIVALS[arrival]}"]
    (again,) = expand("again", words, tmp_path).experiments
    assert any(hit for *_, rows in recorded for *_, hit, _ in rows)
    assert any(preempted for _, _, preempted, _ in recorded) == (room == "scarce")
    queued = recorded[0][0] + len(recorded[0][-1])
    assert (queued == 30) == (arrival == "all_at_once"), "they came over time"
    assert warm.call(served, again.experiment) == recorded
