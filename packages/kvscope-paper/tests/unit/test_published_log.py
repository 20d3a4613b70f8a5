"""Logs of vLLM 0.4.2 as the UnBoxKV-IO artifact has them (its line formats, values made up)."""

from pathlib import Path

import pytest

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.collect.importer import import_run
from kvscope.report.check_run import check_run
from kvscope.tables.runfile import read_run
from kvscope_paper.unboxkv.log import read_log
from kvscope_paper.unboxkv.log_batches import Cache, passes

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
    # The blocks of request 1 leave the cache in the second pass, those of request 2 in the last.
    assert steps["kv_tokens_used"].tolist() == [5 + 1, 1 + 3, 5, 0]
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
    result = read_log(log)
    assert result.lengths == [(5, 2), (4, 3)]
    assert [pass_.tokens for pass_ in result.passes] == list(TOKENS)


def test_tokens_beyond_the_lengths_were_computed_again_and_count_once(tmp_path: Path):
    line = "INFO x] A RECOMPUTE sequence is resumed. recomputed_tokens = 3, tokens = 3"
    path = tmp_path / "again.log"
    path.write_text(log_text((6, 4, 4, 1), extra=line), encoding="utf-8")
    import_run("unboxkv", [path], tmp_path / "run")
    steps = tables.read(tables.STEPS, tmp_path / "run" / "steps.parquet")
    assert steps["recomputed_tokens"].sum() == 3
    assert len(tables.read(tables.BATCH, tmp_path / "run" / "batch.parquet")) == 0
    assert steps["kv_tokens_used"].isna().all()
    assert any("computed again" in fault for fault in read_run(tmp_path / "run")["faults"])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nothing of the kind\n", "is no log"),
        (log_text().split("Start benchmarking")[0], "no pass"),
        (log_text((6, 4, 1, 0)), "fewer"),
        (log_text().replace("input_ids.shape=torch.Size([4])", ""), "pass 2 lacks a line"),
        (log_text().replace("Pending: 0", "Pending: 9" + 20 * "9"), "pass 1 has a number"),
        (log_text().replace("usage: 2.0%", f"usage: {'9' * 400}.0%"), "pass 1 has a number"),
        (log_text().replace("prompt_len=5", f"prompt_len={'9' * 20}"), "beyond"),
    ],
)
def test_an_incomplete_log_is_refused(tmp_path: Path, text: str, complaint: str):
    path = tmp_path / "cut.log"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=complaint):
        import_run("unboxkv", [path], tmp_path / "run")


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("default", [5, 4, 2, 1]), ("mixed", [5, 5, 1, 1]), ("chunked", [6, 4, 1, 1])],
)
def test_batches_of_the_three_strategies_by_hand(strategy: str, expected: list[int]):
    assert [pass_.tokens for pass_ in passes([(5, 2), (4, 3)], strategy, 6)] == expected


# Two requests of 4 + 6 tokens share four blocks of 4; the second one is preempted.
SCARCE = Cache(blocks=4, block_size=4)


def test_a_request_is_preempted_and_recomputed_by_hand():
    result = list(passes([(4, 6), (4, 6)], "default", 16, SCARCE))
    assert [pass_.tokens for pass_ in result[:4]] == [8, 2, 1, 6]
    (lost,) = result[2].lost
    assert (lost.request, lost.tokens, lost.blocks) == (2, 5, 2)
    (row,) = result[3].rows
    assert (row.request, row.context, row.recomputed, row.resumed) == (2, 0, 5, True)


@pytest.mark.parametrize("strategy", ["default", "mixed", "chunked"])
@pytest.mark.parametrize("blocks", [48, 60, 80, 10_000])
def test_tokens_are_conserved_and_every_victim_returns(strategy: str, blocks: int):
    lengths = [(40 + 7 * n % 50, 30 + 11 * n % 60) for n in range(12)]
    result = list(passes(lengths, strategy, 256, Cache(blocks, 4)))
    rows = [row for pass_ in result for row in pass_.rows]
    expected = sum(prompt + output - 1 for prompt, output in lengths)
    assert sum(row.tokens for row in rows) == expected + sum(row.recomputed for row in rows)
    assert sum(row.sampled for row in rows) == sum(output for _, output in lengths)
    lost = [victim for made in result for victim in made.lost]
    assert sum(victim.tokens for victim in lost) == sum(row.recomputed for row in rows)
    assert bool(lost) == (blocks < 1000)


def log_of(lengths: list[tuple[int, int]], strategy: str, budget: int, cache: Cache) -> str:
    """A log as vLLM 0.4.2 would have written it, with the batches that the rules give."""
    chunked, mixed = strategy == "chunked", strategy == "mixed"
    lines = [
        f"Namespace(max_model_len=4096, max_num_batched_tokens={budget}, block_size="
        f"{cache.block_size}, enable_chunked_prefill={chunked}, enable_mixed_batch={mixed})",
        *(f"User Requests: prompt_len={p}, output_len={o}, sequence_len=..." for p, o in lengths),
        f"INFO x] # GPU blocks: {cache.blocks}, # CPU blocks: 50",
        "INFO x Start benchmarking...",
    ]
    for pass_ in passes(lengths, strategy, budget, cache):
        lines += ["WARNING x] Scheduler preempt the lowest-priority groups."] * len(pass_.lost)
        again = sum(row.recomputed for row in pass_.rows)
        if again:
            lines.append(f"x] A RECOMPUTE sequence is resumed. recomputed_tokens = {again}, ...")
        lines += [
            f"x] before LlamaModel forward() input_ids.shape=torch.Size([{pass_.tokens}]), ...",
            f"x] Avg ..., Running: {len(pass_.rows)} reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU "
            "KV cache usage: 50.0%, CPU KV cache usage: 0.0%, Interval(ms): 11.0",
            "x] LLMEngine step() (unit:ms): time_cost 10.0 resumed_reqs=0, running_reqs=1",
        ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("strategy", ["default", "mixed", "chunked"])
def test_a_log_with_preemptions_has_batches_and_preemptions(tmp_path: Path, strategy: str):
    lengths, cache = [(40, 60), (35, 80), (50, 50), (20, 90)], Cache(40, 4)
    path, out = tmp_path / "scarce.log", tmp_path / "run"
    path.write_text(log_of(lengths, strategy, 128, cache), encoding="utf-8")
    import_run("unboxkv", [path], out)
    assert [*check_run(out)] == []
    table = tables.read(tables.PREEMPTIONS, out / "preemptions.parquet")
    batch = tables.read(tables.BATCH, out / "batch.parquet")
    steps = tables.read(tables.STEPS, out / "steps.parquet")
    counts = table["event"].value_counts()
    assert counts["preempt"] == counts["resume"] > 0
    again = batch.groupby("step")["recomputed_tokens"].sum()
    assert again.tolist() == steps["recomputed_tokens"].tolist()
    assert steps["kv_tokens_used"].tolist() == held_tokens(batch, table, lengths)
    resumed = table[table["event"] == "resume"]
    assert again.sum() == resumed["recomputed_tokens"].sum() > 0
    assert any("every pass agrees" in fault for fault in read_run(out)["faults"])
    assert read_run(out)["evidence"] == []  # its requests have no times


def held_tokens(batch, preemptions, lengths) -> list[int]:
    """Tokens in the cache after each pass: what each request has computed and neither lost nor
    left behind with its last token."""
    held: dict[str, int] = {}
    given: dict[str, int] = {}
    sums = []
    lost = preemptions[preemptions["event"] == "preempt"]
    for step, rows in batch.groupby("step"):
        for request in lost.loc[lost["step"] == step, "request_id"]:
            held.pop(request)
        for row in rows.itertuples():
            held[row.request_id] = row.context_tokens + row.scheduled_tokens
            given[row.request_id] = given.get(row.request_id, 0) + row.sampled_tokens
            if given[row.request_id] == lengths[int(row.request_id) - 1][1]:
                held.pop(row.request_id)
        sums.append(sum(held.values()))
    return sums


@pytest.mark.parametrize("blocks", [39, 41])
def test_batches_that_do_not_follow_are_not_made_up(tmp_path: Path, blocks: int):
    """With a block more or less the passes differ, which the import notices."""
    lengths, cache = [(40, 60), (35, 80), (50, 50), (20, 90)], Cache(40, 4)
    path, out = tmp_path / "other.log", tmp_path / "run"
    text = log_of(lengths, "default", 128, cache).replace("blocks: 40,", f"blocks: {blocks},")
    path.write_text(text, encoding="utf-8")
    import_run("unboxkv", [path], out)
    assert tables.read(tables.BATCH, out / "batch.parquet").empty
    assert tables.read(tables.PREEMPTIONS, out / "preemptions.parquet").empty
    assert any(
        "which request each pass computed is not known" in f for f in read_run(out)["faults"]
    )


@pytest.mark.parametrize("name", ["max_num_batched_tokens", "block_size"])
@pytest.mark.parametrize("value", ["", "0", "-3", "many", "9" * 30])
def test_a_setting_that_is_no_number_is_named(tmp_path: Path, name: str, value: str):
    path = tmp_path / "wrong.log"
    usual = {"max_num_batched_tokens": "6", "block_size": "16"}[name]
    path.write_text(log_text().replace(f"{name}={usual}", f"{name}={value}"), encoding="utf-8")
    with pytest.raises(BadInput, match=name):
        import_run("unboxkv", [path], tmp_path / "run")
