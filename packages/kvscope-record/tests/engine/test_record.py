"""A recorded engine of vLLM against its own counts, the client's view, and an unrecorded engine."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import test_replayed_passes
from served import ABORTED, REQUESTS, lengths

pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")

from kvscope.engine.vllm.versions import RECORDED
from kvscope.judge.records import Records, read_records
from kvscope.metrics.experiment import analyse
from kvscope.metrics.registry import metrics_by_name
from kvscope.plan.grid import expand
from kvscope.report.check_run import check_run
from kvscope.tables.phases import DECODE, PREFILL
from kvscope.tables.runfile import read_run
from kvscope.tables.verdict import HELD, VIOLATED
from kvscope_record import replayed
from kvscope_record.glance import look
from kvscope_record.records import Scheduled
from kvscope_record.study import write_study
from kvscope_record.window import read_window
from tests.conftest import Require
from tests.engine.conftest import ROOT, kvscope
from tests.engine.forged_runs import Forgery, found
from tests.engine.other_vllm import pinned, python_of
from tests.warm import Warm

pytestmark = [pytest.mark.engine, pytest.mark.thorough]

ASYNCHRONOUS = "vllm.v1.core.sched.async_scheduler.AsyncScheduler"
IN_ORDER = {"async_scheduling": False}
WAYS: dict[str, dict[str, Any]] = {
    "in order": IN_ORDER,
    "overlapping": {"scheduler_cls": ASYNCHRONOUS, "overlapping": True},
    "speculating": {
        "async_scheduling": False,
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_max": 2,
            "prompt_lookup_min": 1,
        },
    },
    "offloading": {
        "async_scheduling": False,
        "kv_transfer_config": {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "cpu_bytes_to_use": 1 << 24,
                "offload_prompt_only": False,
                # vLLM's own worker needs a GPU.
                "spec_module_path": "kvscope_connectors.worker",
                "spec_name": "HostOffloadingSpec",
            },
        },
    },
    "without a prefix cache": {"async_scheduling": False, "enable_prefix_caching": False},
}
SAID = {
    "offloading": "kvscope: transfers: copies of OffloadingConnector as they were ordered, "
    "without their times\n",
    "overlapping": "kvscope: aborts: 1 request(s) had stop strings, and may have ended by one: "
    "vLLM finds it outside its engine, and aborts the request there\n",
}
"""Messages of `collect` about a recording."""
PINNED, OTHERS = pinned("cpu.txt"), pinned("vllm.txt")
OF_PINNED = ("offloading", "speculating")
"""Ways of the pinned version alone, which run last: vLLM makes no engine after a speculating one.
"""
REPRESENTATIVE = ("0.27", "0.33")
"""The first of OTHERS, from before the plan of the cache changed, and the last."""


@dataclass(frozen=True)
class Served:
    """Outputs of the engines, by how they were run, and the log of all."""

    directory: Path
    engines: dict[str, dict[str, Any]]
    log: str

    def table(self, way: str, name: str) -> pd.DataFrame:
        return pd.read_parquet(self.directory / way / f"{name}.parquet")

    def whole(self, way: str) -> dict[str, Any]:
        """The tokens of the requests that were not aborted."""
        outputs: dict[str, Any] = self.engines[way]["outputs"]
        return {name: tokens for name, tokens in outputs.items() if name != str(ABORTED)}


@pytest.fixture(
    scope="module",
    params=[
        *PINNED,
        *(
            pytest.param(version, marks=() if version in REPRESENTATIVE else pytest.mark.exhaustive)
            for version in OTHERS
        ),
    ],
)
def python(request: pytest.FixtureRequest, require: Require) -> str:
    """The Python of an environment with a version of vLLM, each in turn."""
    if request.param in PINNED:
        return sys.executable
    return python_of(request.param, require)


@pytest.fixture(scope="module")
def served(python: str, tmp_path_factory: pytest.TempPathFactory) -> Served:
    place: Path = tmp_path_factory.mktemp("served")
    words = ["model=tiny-llama", "model.layers=2", "profiler=none", "engine.max_model_len=512"]
    (planned,) = expand(None, words, ROOT / "config").experiments
    config = json.dumps(planned.experiment.model.hf_config())
    (place / "model").mkdir()
    (place / "model" / "config.json").write_text(config)
    engines: dict[str, dict[str, Any]] = {
        "not recorded": IN_ORDER | {"record": None},
        **{way: settings | {"record": str(place / way)} for way, settings in WAYS.items()},
        "a full disk": IN_ORDER | {"record": str(place / "full"), "more_bytes": 1000},
        "no directory": IN_ORDER | {"record": "/dev/null/recording"},
    }
    for way in OF_PINNED:
        own = engines.pop(way)
        if python == sys.executable:
            engines[way] = own
    ended = subprocess.run(
        [
            *(python, str(Path(__file__).with_name("served.py"))),
            *(str(place / "model"), str(place / "results.json")),
        ],
        input=json.dumps([*engines.values()]),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    log = ended.stdout + ended.stderr
    assert ended.returncode == 0, log[-3000:]
    found = json.loads((place / "results.json").read_text())
    for way in engines.keys() & WAYS.keys():
        made = kvscope("collect", str(place / way))
        assert (made.returncode, made.stderr) == (0, SAID.get(way, ""))
    return Served(place, dict(zip(engines, found, strict=True)), log)


@pytest.fixture
def way(request: pytest.FixtureRequest, served: Served) -> str:
    """A way to serve, which the version of vLLM has."""
    name: str = request.param
    if name not in served.engines:
        # `OF_PINNED` are served by the pinned version alone.
        pytest.skip(f"{name}: of vLLM {PINNED[0]} alone")
    return name


def test_every_supported_version_is_recorded_here():
    assert {*OTHERS, *PINNED} == {*RECORDED}


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_the_counts_are_those_of_vllm_s_own_metrics(served: Served, way: str):
    requests, steps = served.table(way, "requests"), served.table(way, "steps")
    batch, preemptions = served.table(way, "batch"), served.table(way, "preemptions")
    resumed = preemptions.loc[preemptions["event"] == "resume", "hit_tokens"].sum()
    counts = served.engines[way]["counts"]
    assert counts["vllm:num_preemptions"] > 0, "the cache was not scarce"
    prompts = requests["prompt_tokens"].sum()
    assert counts == {
        "vllm:num_preemptions": (preemptions["event"] == "preempt").sum(),
        "vllm:prefix_cache_queries": prompts if way != "without a prefix cache" else 0,
        "vllm:prefix_cache_hits": batch["hit_tokens"].sum() - resumed,
        "vllm:prompt_tokens": prompts,
        "vllm:generation_tokens": steps["sampled_tokens"].sum(),
        "vllm:spec_decode_num_draft_tokens": batch["draft_tokens"].sum(),
        "vllm:spec_decode_num_accepted_tokens": batch["accepted_tokens"].sum(),
    }
    assert (counts["vllm:spec_decode_num_accepted_tokens"] > 0) == (way == "speculating")


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_the_requests_are_the_client_s(served: Served, way: str):
    requests = served.table(way, "requests")
    done = requests[~requests["aborted"]]
    found = Counter(zip(done["prompt_tokens"], done["output_tokens"], strict=True))
    sent = (lengths(number) for number in range(REQUESTS) if number != ABORTED)
    assert found == Counter((len(prompt), tokens) for prompt, tokens in sent)
    aborted = requests[requests["aborted"]]
    assert aborted["prompt_tokens"].tolist() == [len(lengths(ABORTED)[0])]
    outputs = served.engines[way]["outputs"]
    assert aborted["output_tokens"].item() >= len(outputs[str(ABORTED)])


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_a_request_ends_before_one_pass(served: Served, way: str):
    events = read_window(served.directory / way).events
    ended = Counter(one for event in events if isinstance(event, Scheduled) for one in event.ended)
    assert set(ended.values()) == {1}


@pytest.mark.parametrize("way", ["in order", "without a prefix cache"])
def test_its_study_has_every_pass_where_requests_come_before_the_same_ones(
    python: str, served: Served, warm: Warm, tmp_path: Path, way: str
):
    if python != sys.executable:  # kvscope's own runs are by the pinned version alone
        pytest.skip(f"a study is served by the scheduler of vLLM {PINNED[0]}")
    recording = replayed.read(read_window(served.directory / way)).recording
    write_study(served.directory / way, tmp_path / "study" / "again.yaml", "h100", "tiny-llama")
    (again,) = expand("again", ["workload.arrival=passes"], tmp_path).experiments
    passes = warm.call(test_replayed_passes.served, again.experiment)
    assert passes == test_replayed_passes.passes_of(recording)


def test_scheduling_is_as_it_was_asked_for(served: Served):
    engines = served.engines
    assert engines["in order"]["scheduler"] == engines["not recorded"]["scheduler"] == "Scheduler"
    assert engines["overlapping"]["scheduler"] == "AsyncScheduler"
    assert read_run(served.directory / "overlapping")["recorded"]["overlapping"]
    assert not read_run(served.directory / "in order")["recorded"]["overlapping"]


@pytest.mark.parametrize(
    "way", ["in order", "without a prefix cache", "a full disk", "no directory"]
)
def test_the_tokens_are_those_of_an_engine_that_is_not_recorded(served: Served, way: str):
    assert served.whole(way) == served.whole("not recorded")


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_every_oracle_that_applies_holds(served: Served, way: str):
    directory = served.directory / way
    metrics = analyse(directory, directory)
    assert set(metrics["reasons"]) == {""}
    assert check_run(directory) == []


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_no_token_is_stored(served: Served, way: str):
    assert served.table(way, "workload")["prompt_token_ids"].isna().all()
    assert served.table(way, "requests")["output_sha256"].isna().all()


@pytest.mark.parametrize("way", ["offloading"], indirect=True)
def test_what_a_pass_begins_with_is_what_vllm_had_ordered_for_it(served: Served, way: str):
    copies, batch = served.table(way, "offload_jobs"), served.table(way, "batch")
    size = read_run(served.directory / way)["engine"]["block_size"]
    assert copies[["start_s", "end_s", "copy_s"]].isna().all(axis=None)
    assert (copies["direction"] == "out").sum() > 0
    loads, loaded = copies[copies["direction"] == "in"], batch[batch["loaded_tokens"] > 0]
    assert len(loaded) > 0
    for _, row in loaded.iterrows():
        own = loads[(loads["request_id"] == row["request_id"]) & (loads["step"] <= row["step"])]
        job = own.sort_values("step").iloc[-1]
        assert job["first_block"] * size == row["context_tokens"] - row["loaded_tokens"]
        assert job["blocks"] == -(-row["loaded_tokens"] // size)


@pytest.mark.parametrize("way", ["speculating"], indirect=True)
def test_the_drafts_accepted_are_those_of_vllm_s_own_metrics(served: Served, way: str):
    (repeat,) = read_records(served.directory / way).repeats()
    counts = served.engines[way]["counts"]
    drafts, accepted = (counts[f"vllm:spec_decode_num_{n}_tokens"] for n in ("draft", "accepted"))
    assert metrics_by_name()["draft_acceptance_rate"].of(repeat) == pytest.approx(accepted / drafts)


def with_drafts(column: str, change: int, phase: str) -> Forgery:
    """A number of drafts of the first row of a phase that has some, or could, by so many more."""

    def forge(run: Records) -> Records:
        rows = run.batch.copy()
        chosen = rows.index[
            rows["phase"].eq(phase) & (rows["draft_tokens"].gt(0) | (phase != DECODE))
        ]
        rows.loc[chosen[0], column] += change
        return run.variant(batch=rows)

    return forge


@pytest.mark.parametrize(
    ("forge", "oracle"),
    [
        (with_drafts("accepted_tokens", 9, DECODE), "drafts_wrong"),
        (with_drafts("accepted_tokens", 1, DECODE), "differs_from_replay"),
        (with_drafts("draft_tokens", 9, DECODE), "drafts_wrong"),
        (with_drafts("draft_tokens", 1, PREFILL), "drafts_wrong"),
    ],
)
@pytest.mark.parametrize("way", ["speculating"], indirect=True)
def test_forged_drafts_are_noticed(served: Served, way: str, forge: Forgery, oracle: str):
    whole = read_records(served.directory / way)
    assert oracle in found(whole, HELD)
    assert oracle in found(forge(whole), VIOLATED)


def test_an_unwritable_place_costs_a_sentence(served: Served):
    assert served.log.count(f"records no longer into {served.directory / 'full'}: File too") == 1
    assert served.log.count("kvscope records nothing: /dev/null/recording: Not a directory") == 1
    glance = look(served.directory / "full")
    assert glance is not None
    assert glance.passes > 0  # reads what was written before


def test_the_newest_pass_is_watched(served: Served):
    glance = look(served.directory / "in order")
    assert glance is not None
    last = served.table("in order", "steps").iloc[-1]
    assert glance.blocks_used == last["kv_blocks_used"]
    assert glance.running == last["requests"]
    assert glance.waiting == last["waiting_requests"]
    preempted = served.engines["in order"]["counts"]["vllm:num_preemptions"]
    assert 0 < glance.preemptions <= preempted
