"""Requests that arrive and are aborted before given passes: what is served, and forged runs of
it."""

import json
from pathlib import Path

import pandas as pd
import pytest

from kvscope.judge.records import Records, read_records
from kvscope.plan.grid import expand
from kvscope.report.check_run import check_run
from kvscope.tables.verdict import HELD, VIOLATED
from tests.warm import Warm

from .conftest import ROOT, Run
from .forged_runs import Forgery, found

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# Before which pass each comes, and is aborted. The last one comes long after the others have ended.
# The second one was aborted while its fifth pass computed, and did not get its token.
PASSES = {0: (0, None), 1: (0, 5), 2: (3, None), 3: (3, 3), 4: (200, None), 5: (202, 204)}
WORDS = (
    *("model=tiny-llama", "device=dry", "workload=mooncake", "workload.arrival=passes"),
    *("workload.trace_block_tokens=16", "engine.max_model_len=128", "repeats=2", "warmup=1"),
    *("batching=chunked", "batching.chunk_tokens=64", "engine.max_num_batched_tokens=64"),
    *("cache.blocks=64", "cache.block_size=16", "engine.max_num_seqs=8"),
)


@pytest.fixture(scope="module")
def made(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Run:
    place: Path = tmp_path_factory.mktemp("by_pass")
    rows = [
        {
            **{"timestamp": 0, "input_length": 20, "hash_ids": [n, 100 + n]},
            **{"output_length": 4 if n == 1 else 8},
            **{"arrival_pass": came, "abort_pass": aborted},
        }
        for n, (came, aborted) in PASSES.items()
    ]
    (place / "made.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [*WORDS, f"workload.path={place / 'made.jsonl'}"]
    (planned,) = expand(None, words, ROOT / "config").experiments
    facts = warm.run(planned.experiment, place / "run")
    assert facts["status"] == "complete", (place / "run" / "log.txt").read_text()[-3000:]
    assert check_run(place / "run", quick=True) == []
    return Run(place / "run", facts, read_records(place / "run"))


def test_each_request_is_in_the_passes_between(made: Run) -> None:
    batch = made.table("batch").query("repeat == 0").groupby("request_id")["step"]
    spans = pd.DataFrame({"first": batch.min(), "count": batch.size()}).to_dict("index")
    assert spans == {
        "0": {"first": 0, "count": 8},
        "1": {"first": 0, "count": 5},
        "2": {"first": 3, "count": 8},  # "3" is aborted as it comes
        "4": {"first": 11, "count": 8},  # "2" was the last, until pass 11
        "5": {"first": 13, "count": 2},
    }
    requests = made.table("requests").query("repeat == 0").set_index("request_id")
    assert requests["output_tokens"].to_dict() == {"0": 8, "1": 5, "2": 8, "3": 0, "4": 8, "5": 2}
    assert requests.index[requests["aborted"]].tolist() == ["1", "3", "5"]


def shifted(request: str, column: str, passes: int) -> Forgery:
    """A time of a request, so many passes later."""

    def forge(run: Records) -> Records:
        rows, starts_s = run.requests.copy(), run.steps["start_s"]
        at = rows.index[rows["request_id"] == request][0]
        place = starts_s.searchsorted(rows.loc[at, column])
        rows.loc[at, column] = starts_s.iloc[place + passes]
        return run.variant(requests=rows)

    return forge


@pytest.mark.parametrize("passes", [-1, 1])
@pytest.mark.parametrize(
    ("request_id", "column"), [("0", "arrival_s"), ("2", "arrival_s"), ("1", "finished_s")]
)
def test_a_wrong_pass_of_an_arrival_or_abort_is_noticed(
    made: Run, request_id: str, column: str, passes: int
) -> None:
    assert "arrival_pass_wrong" in found(made.records, HELD)
    if request_id == "0" and passes < 0:
        passes = 2  # nothing was before the first pass
    forged = shifted(request_id, column, passes)(made.records)
    assert "arrival_pass_wrong" in found(forged, VIOLATED)
