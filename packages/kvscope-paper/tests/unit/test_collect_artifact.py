"""Published series become a run: what a small engine did, read back from what it would publish."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.base.files import sha256_of
from kvscope.cli import main as cli
from kvscope.collect.importer import import_run
from kvscope.metrics.experiment import analyse
from kvscope.report.check_run import check_run
from kvscope.report.figures import kv_timeline, step_timeline
from kvscope.report.load import load
from kvscope.tables.runfile import write_run
from kvscope_paper.unboxkv.series_csv import LONG_STATS, LONG_STEPS, STATS_SERIES, STEP_SERIES
from kvscope_paper.unboxkv.series_import import faults_of, preemptions_of, steps_of, transfers_of

KIND = "unboxkv-series"
DECODE_MS, SWAP_OUT_MS, SWAP_IN_MS, HOST_MS = 20.0, 50.0, 60.0, 0.1
HOST_TOKENS = 1000


@dataclass(eq=False)
class Request:
    prompt: int
    output: int
    given: int = 0
    held: int = 0  # tokens in the cache, or in the host pool
    lost: int = 0  # tokens it had in the cache when it was dropped


@dataclass
class Engine:
    """vLLM 0.4.2 in little: prefill first, the last to come is preempted, the first resumes."""

    capacity: int  # of the cache, in tokens
    swaps: bool
    waiting: list[Request]
    running: list[Request] = field(default_factory=list)
    swapped: list[Request] = field(default_factory=list)
    truth: list[dict] = field(default_factory=list)
    lines: list[dict] = field(default_factory=list)  # the long form's columns, but short

    def serve(self) -> "Engine":
        names = (*STATS_SERIES.values(), *STEP_SERIES.values())
        self.lines.append(dict.fromkeys(names, 0.0))
        while self.waiting or self.running or self.swapped:
            if self.waiting and not self.swapped and self.fits(self.waiting[0]):
                self.prefill()
            else:
                self.decode()
        return self

    def fits(self, request: Request) -> bool:
        held = sum(r.held for r in self.running)
        needed = request.held or request.prompt + request.given
        return held + needed + len(self.running) + 1 <= self.capacity

    def prefill(self) -> None:
        new: list[Request] = []
        while self.waiting and self.fits(self.waiting[0]):
            request = self.waiting.pop(0)
            request.held = request.prompt + request.given
            new.append(request)
            self.running.append(request)
        tokens = sum(r.held for r in new)
        resumed = [r for r in new if r.lost]
        recomputed = sum(r.lost for r in resumed)
        for request in new:
            request.given, request.lost = request.given + 1, 0
        # vLLM 0.4.2 counts what it computes and, of prompts, what it samples.
        self.line(tokens + len(new), round(5 + tokens / 10, 1), len(resumed))
        self.truth.append(
            {
                "phase": "prefill",
                "scheduled_tokens": tokens,
                "recomputed_tokens": recomputed,
                "sampled_tokens": len(new),
                "requests": len(new),
                "resumed_requests": len(resumed),
                "preempted_requests": 0,
                "waiting_requests": len(self.waiting),
                "pure": len(resumed) in (0, len(new)),
            }
        )

    def decode(self) -> None:
        preempted = resumed = 0
        while sum(r.held for r in self.running) + len(self.running) > self.capacity:
            self.preempt(self.running.pop())
            preempted += 1
        while self.swapped and not preempted and self.fits(self.swapped[0]):
            self.running.append(self.swapped.pop(0))
            resumed += 1
        batch = len(self.running)
        for request in self.running:
            request.held, request.given = request.held + 1, request.given + 1
        out = preempted if self.swaps else 0
        self.line(batch, DECODE_MS + SWAP_OUT_MS * out + SWAP_IN_MS * resumed, resumed)
        self.truth.append(
            {
                "phase": "decode",
                "scheduled_tokens": batch,
                "recomputed_tokens": 0,
                "sampled_tokens": batch,
                "requests": batch,
                "resumed_requests": resumed,
                "preempted_requests": preempted,
                "waiting_requests": len(self.waiting) + len(self.swapped),
                "pure": True,
            }
        )

    def preempt(self, victim: Request) -> None:
        if self.swaps:
            self.swapped.insert(0, victim)
        else:
            victim.lost, victim.held = victim.held, 0
            self.waiting.insert(0, victim)

    def line(self, counted: int, duration_ms: float, resumed: int) -> None:
        during = len(self.running)
        self.running = [r for r in self.running if r.given < r.output]
        interval_ms = duration_ms + HOST_MS
        self.lines.append(
            {
                "elapsed_ms": self.lines[-1]["elapsed_ms"] + interval_ms,
                "throughput": round(1e3 * counted / interval_ms, 1),
                "left": len(self.running),
                "swapped": len(self.swapped),
                "pending": len(self.waiting),
                "kv_percent": round(100 * sum(r.held for r in self.running) / self.capacity, 1),
                "host_percent": round(100 * sum(r.held for r in self.swapped) / HOST_TOKENS, 1),
                "duration_ms": duration_ms,
                "running": during,
                "resumed": resumed,
            }
        )

    @property
    def rows(self) -> pd.DataFrame:
        return pd.DataFrame(self.lines)


def engine(swaps: bool, lengths=((30, 60), (30, 60), (20, 50)), capacity: int = 120) -> Engine:
    return Engine(capacity, swaps, [Request(*length) for length in lengths]).serve()


def publish(served: Engine, directory: Path, name: str) -> tuple[Path, Path]:
    """The two files of a run as they were published."""
    directory.mkdir(exist_ok=True)
    steps, stats = directory / f"{name}_step.csv", directory / f"{name}.csv"
    columns = {short: long for long, short in STEP_SERIES.items()}
    passes = served.rows.iloc[1:][list(columns)].rename(columns=columns)
    passes.insert(0, "step_id", range(1, len(passes) + 1))
    passes.assign(raw_running=0).to_csv(steps, index=False)
    columns = {short: long for long, short in STATS_SERIES.items()}
    served.rows[list(columns)].rename(columns=columns).to_csv(stats, index=False)
    return steps, stats


def publish_long(path: Path, **runs: Engine) -> Path:
    columns = {short: long for long, short in (LONG_STEPS | LONG_STATS).items()}
    parts = [served.rows.rename(columns=columns).assign(series=n) for n, served in runs.items()]
    for part in parts:
        part.loc[0, list(LONG_STEPS)] = None
    pd.concat(parts).assign(figure="11a").to_csv(path, index=False)
    return path


def table(of: tables.Table, run: Path) -> pd.DataFrame:
    return tables.read(of, run / f"{of.name}.parquet")


LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=12)


@given(LENGTHS, st.integers(101, 300), st.booleans())
def test_what_the_engine_did_is_read_back(lengths, capacity, swaps):
    served = engine(swaps, lengths, capacity)
    truth, steps = pd.DataFrame(served.truth), steps_of(served.rows)
    for column in truth.columns.drop(["pure", "recomputed_tokens"]):
        assert steps[column].tolist() == truth[column].tolist(), column
    pure = truth["pure"].astype(bool)
    assert (steps["recomputed_tokens"] == truth["recomputed_tokens"])[pure].all()
    # Nothing is lost and nothing invented: prompt + output - 1 tokens each, and the recomputed.
    due = sum(prompt + output - 1 for prompt, output in lengths)
    assert steps["scheduled_tokens"].sum() == due + truth["recomputed_tokens"].sum()


@pytest.mark.slow
@given(LENGTHS, st.integers(101, 300), st.booleans())
def test_every_preemption_and_resumption_has_its_row(lengths, capacity, swaps):
    served = engine(swaps, lengths, capacity)
    steps = steps_of(served.rows)
    events = preemptions_of(served.rows, steps)
    tables.to_arrow(tables.PREEMPTIONS, events)
    assert set(events["policy"]) <= {"swap" if swaps else "recompute"}
    for event, column in (("preempt", "preempted_requests"), ("resume", "resumed_requests")):
        found = events[events["event"] == event].groupby("step").size()
        assert found.to_dict() == steps[column][steps[column] > 0].to_dict()
    assert events["recomputed_tokens"].sum() == steps["recomputed_tokens"].sum()


def test_copies_are_what_their_passes_took_beyond_the_decode_around_them():
    served = engine(swaps=True)
    copies = transfers_of(served.rows, steps_of(served.rows))
    out, back = (copies[copies["direction"] == direction] for direction in ("out", "in"))
    assert len(out) == len(back) > 0
    assert out["copy_s"].to_numpy() == pytest.approx(SWAP_OUT_MS / 1e3)
    assert back["copy_s"].to_numpy() == pytest.approx(SWAP_IN_MS / 1e3)
    tables.to_arrow(tables.TRANSFERS, copies)


def test_new_prompts_in_a_pass_that_recomputes_get_their_share_by_requests():
    rows = pd.DataFrame(0.0, index=range(2), columns=engine(swaps=False).rows.columns)
    # One request comes back and another is new: 80 tokens and two sampled tokens in 0.1 s.
    rows.loc[1] = {"elapsed_ms": 100, "throughput": 820, "running": 2, "left": 2, "resumed": 1}
    rows = rows.fillna(0)
    step = steps_of(rows).loc[0]
    assert (step["scheduled_tokens"], step["recomputed_tokens"]) == (80, 40 - 1)
    assert "1 of the 1 passes" in faults_of(rows)[-1]
    assert "are estimates" in faults_of(rows)[-1]


# ------------------------------------------------------------------------- a directory


@pytest.fixture
def swap_run(tmp_path) -> Path:
    out = tmp_path / "run"
    import_run(KIND, publish(engine(swaps=True), tmp_path, "swap_mine"), out)
    return out


def test_an_import_is_a_sound_run_that_names_its_sources_and_faults(swap_run, tmp_path):
    assert check_run(swap_run) == []
    facts = json.loads((swap_run / "run.json").read_text())
    assert facts["time_source"] == "published"
    assert facts["experiment_id"].startswith("swap_mine-")
    named = {file["file"]: file["sha256"] for file in facts["imported_from"]["files"]}
    assert named == {p.name: sha256_of(p) for p in tmp_path.glob("*.csv")}
    text = " ".join(facts["faults"])
    for fault in ("no requests", "percent with one decimal", "throughput times its interval"):
        assert fault in text
    assert "not measured by the device" in text
    assert not any("measured by the device" in f for f in faults_of(engine(swaps=False).rows))
    assert set(table(tables.STEPS, swap_run)["time_source"]) == {"published"}
    assert all(table(of, swap_run).empty for of in (tables.REQUESTS, tables.BATCH, tables.WORKLOAD))


def test_an_import_is_analysed_by_what_it_holds(swap_run):
    metrics = analyse(swap_run, swap_run).set_index("metric")
    assert set(metrics["reasons"]) == {""}
    assert metrics["valid"].all()
    steps, events = table(tables.STEPS, swap_run), table(tables.PREEMPTIONS, swap_run)
    copies = len(events) // 2
    assert copies > 0
    value = metrics["value"]
    resuming = steps.loc[steps["resumed_requests"] > 0, "duration_s"].sum()
    assert value["resume_overhead_gross_s"] == pytest.approx(resuming + copies * SWAP_OUT_MS / 1e3)
    both_ways = copies * (SWAP_OUT_MS + SWAP_IN_MS) / 1e3
    assert value["resume_overhead_net_s"] == pytest.approx(both_ways)
    assert value["makespan_s"] == pytest.approx((steps["start_s"] + steps["duration_s"]).max())
    unknown = ("throughput_tokens_per_s", "ttft_mean_s", "itl_mean_s", "kv_token_utilization_mean")
    assert value[[*unknown, "swapped_bytes", "preemption_wait_mean_s"]].isna().all()


def test_timelines_of_an_import_have_no_tokens_held(swap_run):
    """They were not published, and are not 0."""
    analyse(swap_run, swap_run)
    study = load([str(swap_run)], Path("results"))
    timeline, shares = step_timeline.draw(study, ()), kv_timeline.draw(study, ())
    assert timeline is not None
    assert shares is not None
    assert "tokens held: not recorded" in timeline.views[0].note
    assert '"datum": "tokens held"' not in json.dumps(timeline.views[0].chart)
    assert '"datum": "blocks in use"' in json.dumps(timeline.views[0].chart)
    assert '"datum": "tokens held"' not in json.dumps(shares.views[0].chart)


def test_usages_are_thousandths_of_the_cache_and_of_the_pool(swap_run):
    steps, rows = table(tables.STEPS, swap_run), engine(swaps=True).rows.iloc[1:]
    assert set(steps["kv_blocks_total"]) == set(steps["host_blocks_total"]) == {1000}
    assert steps["kv_blocks_used"].to_numpy() == pytest.approx(10 * rows["kv_percent"])
    assert steps["host_blocks_used"].to_numpy() == pytest.approx(10 * rows["host_percent"])
    assert set(steps_of(engine(swaps=False).rows)["host_blocks_total"]) == {0}


def test_neither_the_files_order_nor_their_form_changes_a_table(tmp_path):
    runs = {"swap": engine(swaps=True), "recompute": engine(swaps=False)}
    steps, stats = publish(runs["swap"], tmp_path, "x")
    long = publish_long(tmp_path / "long.csv", **runs)
    ways = ([steps, stats], None), ([stats, steps], None), ([long], "swap")
    for number, (paths, series) in enumerate(ways):
        import_run(KIND, paths, tmp_path / str(number), series)
    for of in (tables.STEPS, tables.PREEMPTIONS):
        first, second, third = (table(of, tmp_path / str(number)) for number in range(3))
        pd.testing.assert_frame_equal(first, second)
        pd.testing.assert_frame_equal(first, third)


def test_an_import_may_be_made_again_but_never_over_a_measured_run(swap_run, tmp_path):
    files = publish(engine(swaps=False), tmp_path, "other")
    import_run(KIND, files, swap_run)
    assert check_run(swap_run) == []
    assert set(table(tables.PREEMPTIONS, swap_run)["policy"]) == {"recompute"}
    write_run(swap_run, {"experiment_id": "mine", "status": "complete", "files": {}})
    with pytest.raises(BadInput, match="was measured"):
        import_run(KIND, files, swap_run)


# ---------------------------------------------------------------------------- complaints


def complaint(tmp_path, paths, series=None, kind=KIND) -> str:
    with pytest.raises(BadInput) as error:
        import_run(kind, paths, tmp_path / "out", series)
    assert not (tmp_path / "out").exists()
    return str(error.value)


def test_files_of_two_runs_are_not_mixed(tmp_path):
    steps, _ = publish(engine(swaps=True), tmp_path, "swap")
    _, stats = publish(engine(swaps=False), tmp_path, "recompute")
    rows = min(len(pd.read_csv(steps)), len(pd.read_csv(stats)) - 1)
    pd.read_csv(steps).head(rows).to_csv(steps, index=False)
    pd.read_csv(stats).head(rows + 1).to_csv(stats, index=False)
    assert "not of one run" in complaint(tmp_path, [steps, stats])


def test_a_missing_row_is_noticed(tmp_path):
    steps, stats = publish(engine(swaps=True), tmp_path, "x")
    pd.read_csv(stats).iloc[:-1].to_csv(stats, index=False)
    assert "one a pass and one before the first" in complaint(tmp_path, [steps, stats])
    pd.read_csv(stats).iloc[1:].to_csv(stats, index=False)
    pd.read_csv(steps).iloc[:-2].to_csv(steps, index=False)
    assert "not of zeros" in complaint(tmp_path, [steps, stats])


@pytest.mark.parametrize("cell", ["", "many", "-1", "nan", "inf"])
def test_a_cell_that_is_no_number_is_named_by_its_line_and_column(tmp_path, cell):
    steps, stats = publish(engine(swaps=True), tmp_path, "x")
    lines = steps.read_text().splitlines()
    lines[3] = ",".join(["3", cell, *lines[3].split(",")[2:]])
    steps.write_text("\n".join(lines))
    assert f"line 4 has '{cell}' for 'dur(ms)'" in complaint(tmp_path, [stats, steps])


def test_the_long_form_asks_which_run_and_names_those_it_has(tmp_path):
    long = publish_long(tmp_path / "l.csv", swap=engine(True), recompute=engine(False))
    assert "holds swap and recompute; choose one with --series" in complaint(tmp_path, [long])
    assert "no series 'swop', only swap and" in complaint(tmp_path, [long], "swop")
    steps, stats = publish(engine(swaps=True), tmp_path, "x")
    assert "leave --series out" in complaint(tmp_path, [steps, stats], "swap")


def test_files_that_are_something_else_are_refused_in_one_sentence(tmp_path):
    steps, stats = publish(engine(swaps=True), tmp_path, "x")
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    for paths, words in (
        ([tmp_path / "absent.csv"], "no such file"),
        ([other, stats], "header 'a,b'"),
        ([empty], "header ''"),
        ([steps], "give a step series with its stats series"),
        ([steps, steps], "and so is"),
    ):
        message = complaint(tmp_path, paths)
        assert words in message
        assert "\n" not in message
    assert "known: unboxkv, unboxkv-series" in complaint(tmp_path, [steps, stats], kind="other")


def test_the_command_imports_and_says_where(tmp_path, capsys):
    steps, stats = publish(engine(swaps=True), tmp_path, "x")
    out = tmp_path / "out"
    assert cli.main(["import", KIND, str(stats), str(steps), "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert cli.main(["import", KIND, str(steps), "--out", str(out)]) == 2
    assert capsys.readouterr().err.startswith("kvscope: ")


def test_the_example_engine_swaps_recomputes_and_shares_passes():
    """The examples above would prove little of an engine that never overflowed."""
    assert np.sum([row["preempted_requests"] for row in engine(True).truth]) > 0
    assert np.sum([row["recomputed_tokens"] for row in engine(False).truth]) > 0
