"""Logs of vLLM 0.4.2 as the UnBoxKV-IO artifact has them (its line formats, values made up)."""

from pathlib import Path

import pytest

from kvscope import tables
from kvscope.analyse.check import check_run
from kvscope.collect.unboxkv.importer import import_run
from kvscope.collect.unboxkv.log import read_log
from kvscope.collect.unboxkv.log_batches import batches
from kvscope.errors import BadInput
from kvscope.runfile import read_run

# Two requests, 5 + 2 and 4 + 3 tokens, in chunks of at most 6: by hand
# 5 + 1 | 1 + 3 | 1 | 1; the host stalls in the second pass.
TOKENS, TIMES_MS, FORWARD_MS = (6, 4, 1, 1), (40.0, 1600.0, 15.0, 15.0), (14.0, 1570.0, 9.0, 9.0)
QUEUES = ((2, 0), (1, 0), (1, 0), (0, 0))  # running and pending after each pass


def log_text(tokens=TOKENS, chunked=True, extra: str = "") -> str:
    lines = [
        f"Namespace(seed=1234, num_prompts=2, max_model_len=64, max_num_batched_tokens=6, "
        f"block_size=16, enable_chunked_prefill={chunked}, enable_mixed_batch=False)",
        "Original order",
        "User Requests: prompt_len=4, output_len=3, sequence_len=7...",
        "User Requests: prompt_len=5, output_len=2, sequence_len=7...",
        "Selected required requests 2",
        "User Requests: prompt_len=5, output_len=2, sequence_len=7...",
        "User Requests: prompt_len=4, output_len=3, sequence_len=7...",
        "INFO 10-04 04:20:19 gpu_executor.py:117] # GPU blocks: 100, # CPU blocks: 50",
        "INFO 10-04 04:20:50 Start warmup...",
        "INFO 10-04 04:20:51 llama.py:322] before LlamaModel forward() "
        "input_ids.shape=torch.Size([1024]), positions.shape=torch.Size([1024])",
        "INFO 10-04 04:20:51 llm_engine.py:629] LLMEngine step() (unit:ms): time_cost 900.0 "
        "resumed_reqs=0, running_reqs=1 raw_running=1",
        "INFO 10-04 04:20:57 Start benchmarking...",
    ]
    for count, ms, forward, (running, pending) in zip(
        tokens, TIMES_MS, FORWARD_MS, QUEUES, strict=True
    ):
        lines += [
            f"INFO 10-04 04:20:57 llama.py:322] before LlamaModel forward() "
            f"input_ids.shape=torch.Size([{count}]), positions.shape=torch.Size([{count}])",
            f"INFO 10-04 04:20:57 model_runner.py:861] ModelRunner execute_model (ms): "
            f"prepare_input = 0.7, fwd={forward} cmp_logits=0.1, sampling=1.0, total={ms}",
            f"INFO 10-04 04:20:57 metrics.py:335] Avg prompt throughput: 9.1 tokens/s, Avg "
            f"generation throughput: 0.6 tokens/s, Running: {running} reqs, Swapped: 0 reqs, "
            f"Pending: {pending} reqs, GPU KV cache usage: 2.0%, CPU KV cache usage: 0.0%, "
            f"Interval(ms): {ms + 1}",
            extra,
            f"INFO 10-04 04:20:57 llm_engine.py:629] LLMEngine step() (unit:ms): time_cost {ms} "
            f"resumed_reqs=0, running_reqs={running} raw_running={running}",
        ]
        extra = ""
    for number, finished in ((1, 101.7), (2, 101.9)):
        lines.append(
            f"RequestOutput(request_id={number}, request_type=SequenceType.RAW, finished=True, "
            f"metrics=RequestMetrics(arrival_time=100.0, last_token_time={finished}, "
            f"first_scheduled_time=100.1, first_token_time=100.2, time_in_queue=0.1, "
            f"finished_time={finished}, rescheduled_time=None, reget_first_token_time=None))"
        )
    lines += ["Total_num_tokens: 14", "End-to-End latency: 1.90 seconds "]
    return "\n".join(line for line in lines if line) + "\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text(log_text(), encoding="utf-8")
    return path


def test_a_log_becomes_passes_with_their_requests_and_times(log: Path, tmp_path: Path):
    out = tmp_path / "run"
    assert (
        import_run("unboxkv", [log], out)
        == "4 passes, 12 tokens, of which 0 computed again; 1 stalls"
    )
    steps = tables.read(tables.STEPS, out / "steps.parquet")
    assert steps["scheduled_tokens"].tolist() == list(TOKENS)
    assert steps["phase"].tolist() == ["prefill", "mixed", "decode", "decode"]
    assert steps["stalled"].tolist() == [False, True, False, False]
    assert steps["duration_s"].tolist() == [ms / 1e3 for ms in TIMES_MS]
    batch = tables.read(tables.BATCH, out / "batch.parquet")
    rows = batch[["step", "request_id", "scheduled_tokens", "context_tokens", "sampled_tokens"]]
    assert [tuple(row) for row in rows.to_numpy()] == [
        (0, "1", 5, 0, 1), (0, "2", 1, 0, 0),
        (1, "1", 1, 5, 1), (1, "2", 3, 1, 1),
        (2, "2", 1, 4, 1), (3, "2", 1, 5, 1),
    ]  # fmt: skip
    requests = tables.read(tables.REQUESTS, out / "requests.parquet")
    assert requests["finished_s"].tolist() == pytest.approx([1.7, 1.9])
    assert read_run(out)["time_source"] == "published"


def test_an_imported_log_passes_the_oracles(log: Path, tmp_path: Path):
    import_run("unboxkv", [log], tmp_path / "run")
    assert [*check_run(tmp_path / "run")] == []


def test_the_warm_up_and_the_first_list_of_requests_do_not_count(log: Path):
    found = read_log(log)
    assert found.lengths == [(5, 2), (4, 3)]
    assert [one.tokens for one in found.passes] == list(TOKENS)


def test_tokens_beyond_the_lengths_were_computed_again_and_count_once(tmp_path: Path):
    line = "INFO x] A RECOMPUTE sequence is resumed. recomputed_tokens = 3, tokens = 3"
    path = tmp_path / "again.log"
    path.write_text(log_text((6, 4, 4, 1), extra=line), encoding="utf-8")
    import_run("unboxkv", [path], tmp_path / "run")
    steps = tables.read(tables.STEPS, tmp_path / "run" / "steps.parquet")
    assert steps["recomputed_tokens"].sum() == 3
    assert len(tables.read(tables.BATCH, tmp_path / "run" / "batch.parquet")) == 0
    assert any("computed again" in fault for fault in read_run(tmp_path / "run")["faults"])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nothing of the kind\n", "is no log"),
        (log_text().split("Start benchmarking")[0], "no pass"),
        (log_text((6, 4, 1, 0)), "fewer"),
        (log_text().replace("input_ids.shape=torch.Size([4])", ""), "pass 2 lacks a line"),
    ],
)
def test_what_is_no_whole_log_is_refused(tmp_path: Path, text: str, complaint: str):
    path = tmp_path / "cut.log"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=complaint):
        import_run("unboxkv", [path], tmp_path / "run")


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("default", [5, 4, 2, 1]), ("mixed", [5, 5, 1, 1]), ("chunked", [6, 4, 1, 1])],
)
def test_batches_of_the_three_strategies_by_hand(strategy: str, expected: list[int]):
    found = batches([(5, 2), (4, 3)], strategy, 6)
    assert [sum(row.tokens for row in rows) for rows in found] == expected
