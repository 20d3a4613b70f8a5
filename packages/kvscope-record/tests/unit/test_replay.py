"""A recording as a study: its requests come back, and what it cannot have is said."""

import json
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from test_record_files import written

from kvscope.base.errors import BadInput
from kvscope.cli.main import main
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.tables.kv_plan import KvGroup
from kvscope.workload.requests import Request, build
from kvscope_record.records import Arrival, Ended, Event, Live, Sampled, Scheduled, Segment
from kvscope_record.study import write_study

BLOCK = 16
LLAMA = {
    **{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "head_dim": 128},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336},
    **{"vocab_size": 128256, "dtype": "bfloat16", "architectures": ["LlamaForCausalLM"]},
}
GROUP = asdict(KvGroup("FullAttention", 32, BLOCK, 1 << 21, 1 << 21, 1 << 21))
FACTS: dict[str, Any] = {
    **{"recording": "abc", "vllm": "0.32.0", "block_size": BLOCK, "hash_block_size": BLOCK},
    **{"scheduler": "vllm.v1.core.sched.scheduler.Scheduler", "policy": "fcfs"},
    **{"kv_blocks_total": 700, "kv_groups": [GROUP], "prefix_caching": True},
    **{"async_scheduling": False, "chunked_prefill": True, "max_num_seqs": 24},
    **{"max_num_batched_tokens": 512, "max_model_len": 4096, "watermark": None},
    **{"draft_tokens": 0, "connector": None, "tensor_parallel": 1, "pipeline_parallel": 1},
    **{"data_parallel_rank": 0, "device": "cuda", "model": LLAMA},
}
PROMPTS = {0: ("ab", 40), 1: ("abc", 48), 2: ("", 9), 3: ("abcd", 70), 4: ("x", 16)}
"""Prompt and tokens of each request: a letter for each full block of the prompt, and a number."""
OUTPUTS = {0: 3, 1: 2, 2: 5, 3: 1, 4: 0}
ARRIVALS_NS = {0: 10**9, 1: 10**9 + 7, 2: 2 * 10**9, 3: 2_500_000_001, 4: 3 * 10**9}
ABORTED = (3, 4)


def arrival(number: int) -> Arrival:
    blocks, tokens = PROMPTS[number]
    hashes: list[Any] = [blocks[: at + 1].encode().ljust(32) for at in range(len(blocks))]
    return Arrival(number, ARRIVALS_NS[number], tokens, 100, hashes)


def scheduled(number: int, cached: int = 0, hits: int = 0, computed: int = 1) -> Scheduled:
    """The only pass that has a request."""
    time_ns = ARRIVALS_NS[number] + 1
    result = [[number, hits]] if hits else []
    held = [[number, True, [[number]]]]
    return Scheduled(
        number, time_ns, time_ns + 1, 0, 9, 0, [], [number], [computed], [cached], result, held, []
    )


def passes(number: int, **how: int) -> list[Event]:
    time_ns, given = ARRIVALS_NS[number] + 3, OUTPUTS[number]
    return [
        scheduled(number, **how),
        Sampled(number, time_ns, time_ns + 1, [number][:given], [given][:given]),
    ]


def ended(number: int) -> Ended:
    status = "FINISHED_ABORTED" if number in ABORTED else "FINISHED_STOPPED"
    return Ended(number, 4 * 10**9, status, 0, OUTPUTS[number])


def record(directory: Path, hits: int = 0, computed: int = 1, **facts: Any) -> Path:
    """A recording of the requests, the second of which finds and computes so many tokens."""
    directory.mkdir(exist_ok=True)
    events: list[Event] = [Segment(FACTS | facts, 0, 10**9, 5, 0, 0)]
    for number in PROMPTS:
        second = {"cached": hits, "hits": hits, "computed": computed} if number == 1 else {}
        events += [arrival(number), *passes(number, **second)]
    written(directory, *events, *map(ended, PROMPTS))
    return directory


def replayed(tmp_path: Path, *words: str, **facts: Any) -> tuple[Experiment, list[str]]:
    """The experiment of a recording's study, and the notes on it."""
    path = tmp_path / "config" / "study" / "mine.yaml"
    notes = write_study(record(tmp_path / "recording", **facts), path, "h100", None)
    (planned,) = expand("mine", list(words), tmp_path / "config").experiments
    return planned.experiment, notes


def common(one: Request, other: Request) -> int:
    """The tokens that two prompts share from their starts, in full blocks."""
    pairs = zip(one.prompt_token_ids, other.prompt_token_ids, strict=False)
    differ = [at for at, (a, b) in enumerate(pairs) if a != b]
    shorter = min(len(one.prompt_token_ids), len(other.prompt_token_ids))
    return (differ[0] if differ else shorter) // BLOCK * BLOCK


def test_lengths_and_arrivals_come_back(tmp_path: Path):
    experiment, _ = replayed(tmp_path)
    result = build(experiment)
    assert [len(request.prompt_token_ids) for request in result] == [n for _, n in PROMPTS.values()]
    assert [request.output_tokens for request in result] == [3, 2, 5, 1, 1]
    since_s = [(time_ns - ARRIVALS_NS[0]) / 1e9 for time_ns in ARRIVALS_NS.values()]
    assert [request.arrival_s for request in result] == pytest.approx(since_s, abs=1e-10)


def test_passes_come_back(tmp_path: Path):
    """Each request has a pass of its own; the aborted requests went when all had been served."""
    result = build(replayed(tmp_path, "workload.arrival=passes")[0])
    assert [request.arrival_pass for request in result] == [*PROMPTS]
    assert [request.abort_pass for request in result] == [None, None, None, *[len(PROMPTS)] * 2]
    assert {request.arrival_s for request in result} == {None}
    outputs = [request.output_tokens for request in result]
    assert outputs == [3, 2, 5, 3, 3]  # aborted requests are there until then


def test_prompts_share_exactly_the_blocks_that_were_recorded_as_equal(tmp_path: Path):
    result = build(replayed(tmp_path)[0])
    for one, other in combinations(PROMPTS, 2):
        pairs = zip(PROMPTS[one][0], PROMPTS[other][0], strict=False)
        equal = [a == b for a, b in pairs]
        blocks = (*equal, False).index(False)
        assert common(result[one], result[other]) == blocks * BLOCK, (one, other)


def test_without_a_prefix_cache_no_prompts_share_anything(tmp_path: Path):
    facts = {"prefix_caching": False}
    experiment, notes = replayed(tmp_path, **facts)
    assert not experiment.cache.prefix_caching
    assert any("are not recorded" in note for note in notes)


def test_the_settings_are_the_server_s(tmp_path: Path):
    experiment, _ = replayed(tmp_path)
    engine, cache = experiment.engine, experiment.cache
    assert (engine.max_model_len, engine.max_num_seqs) == (4096, 24)
    assert engine.max_num_batched_tokens == experiment.batching.pass_tokens == 512
    assert (cache.block_size, cache.blocks, cache.prefix_caching) == (BLOCK, 700, True)
    assert (cache.admission, cache.watermark) == ("vllm", 0.0)
    assert experiment.model.name == "llama-3.1-8b"
    assert experiment.device.slug == "-modeled-h100"


def test_prompts_that_are_computed_whole_are_so_in_the_study(tmp_path: Path):
    experiment, _ = replayed(tmp_path, chunked_prefill=False, max_num_batched_tokens=4096)
    assert experiment.batching.name == "mixed"


def test_a_number_type_other_than_the_description_s_is_the_server_s(tmp_path: Path):
    experiment, _ = replayed(tmp_path, model=LLAMA | {"dtype": "float16"})
    assert experiment.model.dtype == "float16"


@pytest.mark.parametrize(
    ("block_bytes", "tensor_parallel", "dtype"),
    [(1 << 21, 1, "auto"), (1 << 20, 1, "fp8"), (1 << 20, 2, "auto"), (1 << 19, 2, "fp8")],
)
def test_a_cache_of_a_byte_a_number_is_told_by_the_size_of_its_blocks(
    tmp_path: Path, block_bytes: int, tensor_parallel: int, dtype: str
):
    groups = [GROUP | {"block_bytes": block_bytes}]  # of one GPU
    experiment, _ = replayed(tmp_path, kv_groups=groups, tensor_parallel=tensor_parallel)
    assert (experiment.cache.dtype, experiment.cache.blocks) == (dtype, 700)


@pytest.mark.parametrize(
    "word", ["cache.blocks=1400", "overflow=swap", "device.hardware=a100-80gb"]
)
def test_what_if_is_one_override(tmp_path: Path, word: str):
    experiment, _ = replayed(tmp_path)
    (other,) = expand("mine", [word], tmp_path / "config").experiments
    assert other.experiment.id != experiment.id


def test_a_request_that_came_before_the_files_begin_is_served_whole(tmp_path: Path):
    came = Live(7, 10**8, 33, 100, [], 2, 34, 0, [[1, 2, 3]])
    begin = Segment(FACTS, 0, 10**9, 5, 6, 0)
    going = Scheduled(6, 10**9, 10**9 + 1, 0, 9, 0, [], [7], [1], [34], [], [], [])
    written(tmp_path, begin, came, going, Sampled(6, 10**9 + 2, 10**9 + 3, [7], [1]))
    path = tmp_path / "study" / "mine.yaml"
    notes = write_study(tmp_path, path, "h100", None)
    row = json.loads(path.with_suffix(".jsonl").read_text())
    assert (row["input_length"], row["output_length"], row["timestamp"]) == (33, 3, 0)
    assert [note.partition(":")[0] for note in notes] == [
        "passes before 6 are not in the tables",
        "requests",
        "aborts",
    ]


def test_aborted_requests_keep_their_tokens_and_are_reported(tmp_path: Path):
    _, notes = replayed(tmp_path)
    assert [note.partition(":")[0] for note in notes] == ["aborts"]
    assert "2 request(s)" in notes[0]


CANNOT: dict[str, tuple[dict[str, Any], str]] = {
    "speculative": ({"draft_tokens": 3}, "speculative decoding"),
    "overlapping": ({"async_scheduling": True}, "asynchronous scheduling"),
    "priority": ({"policy": "priority"}, "scheduling policy: priority"),
    "own scheduler": ({"scheduler": "mine.Own"}, "scheduler: mine.Own"),
    "connector": ({"connector": "NixlConnector"}, "KV connector: NixlConnector"),
    "ranks": ({"tensor_parallel": 4, "pipeline_parallel": 2}, "the server's 8 GPUs"),
    "sessions": ({"computed": 48 + 2 + 1}, "sessions: 1 request(s)"),
    "generated": ({"hits": 48}, "16 tokens of prompts were found in blocks"),
}


@pytest.mark.parametrize("case", CANNOT)
def test_parts_of_a_recording_that_a_study_cannot_have_are_reported(tmp_path: Path, case: str):
    facts, said = CANNOT[case]
    _, notes = replayed(tmp_path, **facts)
    assert any(said in note for note in notes), notes
    assert len(notes) == 2  # it and the aborted requests


def test_what_is_in_the_study_is_not_said(tmp_path: Path):
    _, notes = replayed(tmp_path, hits=32, computed=17)
    assert [note.partition(":")[0] for note in notes] == ["aborts"]


def test_another_model_has_to_be_named(tmp_path: Path):
    recording = record(tmp_path / "recording", model=LLAMA | {"num_hidden_layers": 33})
    path = tmp_path / "config" / "study" / "mine.yaml"
    with pytest.raises(BadInput, match=r"num_hidden_layers 33.*name the nearest with --model"):
        write_study(recording, path, "h100", None)
    assert not path.parent.exists()
    with pytest.raises(BadInput, match=r"model is 'llama' \(--model\)"):
        write_study(recording, path, "h100", "llama")
    notes = write_study(recording, path, "h100", "llama-3.1-8b")
    assert any("num_hidden_layers 32 instead of 33" in note for note in notes)


@pytest.mark.parametrize(
    ("place", "hardware", "said"),
    [
        ("mine.yaml", "h100", "--write is"),
        ("study/mine.yml", "h100", "--write is"),
        ("study/my own.yaml", "h100", "--write is"),
        ("study/mine.yaml", "h1000", "device.hardware is 'h1000'"),
    ],
)
def test_a_study_that_cannot_be_planned_is_not_written(
    tmp_path: Path, place: str, hardware: str, said: str
):
    with pytest.raises(BadInput) as refused:
        write_study(record(tmp_path / "recording"), tmp_path / place, hardware, None)
    assert str(refused.value).startswith(said)
    assert {path.name for path in tmp_path.iterdir()} == {"recording"}


def test_a_file_is_never_replaced(tmp_path: Path):
    replayed(tmp_path)
    study = tmp_path / "config" / "study" / "mine.yaml"
    for kept in (study, study.with_suffix(".jsonl")):
        with pytest.raises(BadInput, match=f"{kept} is there already"):
            write_study(tmp_path / "recording", study, "h100", None)
        kept.unlink()


def test_a_directory_without_a_recording_is_refused(tmp_path: Path):
    with pytest.raises(BadInput, match="no recording is there"):
        write_study(tmp_path, tmp_path / "study" / "mine.yaml", "h100", None)


def test_the_command_says_what_comes_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    study = tmp_path / "mine" / "study" / "what.yaml"
    recording = record(tmp_path / "recording")
    assert main(["replay", str(recording), "--write", str(study)]) == 0
    printed = capsys.readouterr()
    first, following = printed.out.splitlines()
    assert first == str(study)
    assert following == f"next: kvscope plan study=what --config-dir {study.parents[1]}"
    assert printed.err.startswith("kvscope: aborts: ")
    assert main(following.split()[2:]) == 0
    rows = study.with_suffix(".jsonl").read_text().splitlines()
    assert [len(json.loads(row)["hash_ids"]) for row in rows] == [3, 3, 1, 5, 1]
