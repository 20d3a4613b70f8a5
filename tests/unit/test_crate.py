"""ro-crate-metadata.json: its times are of the wall clock, and in order."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.base.errors import BadInput
from kvscope.base.files import read_json, write_json
from kvscope.report.crate import write_crate
from kvscope.tables.runschema import VERSION

from .report_fixture import Fake, write_study

NOW_S = 1_790_000_000
S, MS = 10**9, 10**6


@dataclass(frozen=True)
class Ran:
    """A run by the wall clock; its repeats have a time of their own where they are modeled."""

    begin_s: float
    wall_s: float
    repeats_s: float
    source: str = "measured"
    tells_its_end: bool = True  # else it was made by an earlier version

    def facts(self, id_: str) -> dict[str, Any]:
        """What run.json says."""
        told = {"schema": VERSION, "experiment_id": id_, "status": "complete", "files": {}}
        timings_s = {"total": max(self.wall_s, 0.0)}
        return told | {"time_source": self.source, "timings_s": timings_s, "clock": self.clock()}

    def clock(self) -> dict[str, Any]:
        begin_ns = round(self.begin_s * S)
        end = {"run_end_utc_ns": begin_ns + round(self.wall_s * S)} if self.tells_its_end else {}
        repeat = {"repeat": 0, "start_ns": 0, "duration_s": self.repeats_s}
        return {"run_start_utc_ns": begin_ns, "repeats": [repeat], **end}


def study(results: Path, runs: Sequence[Ran], written_s: Sequence[float] = (NOW_S,)) -> Path:
    """A study of these runs; its table, and figures beside it, were written at these times."""
    fakes = [Fake({"seed": seed}, status=None) for seed, _ in enumerate(runs)]
    write_study(results, fakes)
    for fake, ran in zip(fakes, runs, strict=True):
        write_json(results / "experiments" / fake.id / "run.json", ran.facts(fake.id))
    home = results / "studies" / "fake"
    for number, moment_s in enumerate(written_s):
        file = home / (f"figures/{number}.png" if number else "metrics.parquet")
        file.parent.mkdir(exist_ok=True)
        file.write_text("a table, or a figure")
        os.utime(file, ns=(round(moment_s * S),) * 2)
    return home


def entities(home: Path) -> dict[str, dict[str, Any]]:
    """The entities of the crate that is written of a study, by their ids."""
    written = write_crate(home.name, home.parents[1])
    return {one["@id"]: one for one in read_json(written)["@graph"]}


def instant_ns(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000) * MS


def times_ns(entity: dict[str, Any]) -> tuple[int, int]:
    return instant_ns(entity["startTime"]), instant_ns(entity["endTime"])


def experiments(found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for id_, one in found.items() if id_.startswith("#fake") and "startTime" in one]


def in_order(found: dict[str, dict[str, Any]]) -> None:
    """No action ends before it begins; the workflow's has all others within; then is the crate."""
    actions = {id_: times_ns(one) for id_, one in found.items() if "actionStatus" in one}
    assert all(begin <= end for begin, end in actions.values())
    first, last = min(b for b, _ in actions.values()), max(e for _, e in actions.values())
    assert actions["#workflow-run"] == actions["#orchestration"] == (first, last)
    assert {"#report", "#workflow-run", "#orchestration"} < set(actions)
    assert last <= instant_ns(found["./"]["datePublished"])


RAN = st.builds(
    Ran,
    begin_s=st.floats(NOW_S - 10**6, NOW_S),
    wall_s=st.floats(0, 10**4),
    repeats_s=st.floats(0, 10**6),
    source=st.sampled_from(["measured", "modeled", "rehearsed"]),
    tells_its_end=st.booleans(),
)
WRITTEN = st.lists(st.floats(NOW_S - 10**7, NOW_S + 10**7), min_size=1, max_size=3)


@pytest.mark.thorough
@given(st.lists(RAN, min_size=1, max_size=4), WRITTEN)
def test_times_are_in_order_whenever_runs_and_report_were_made(
    tmp_path_factory: pytest.TempPathFactory, runs: list[Ran], written_s: list[float]
) -> None:
    found = entities(study(tmp_path_factory.mktemp("results"), runs, written_s))
    in_order(found)
    for ran, action in zip(runs, experiments(found), strict=True):
        begin_ns, end_ns = times_ns(action)
        assert begin_ns == pytest.approx(ran.begin_s * S, abs=2 * MS)
        assert end_ns - begin_ns == pytest.approx(ran.wall_s * S, abs=2 * MS)


@pytest.mark.parametrize("tells_its_end", [True, False])
def test_a_modeled_run_took_what_it_took_here_not_what_it_models(
    tmp_path: Path, tells_its_end: bool
) -> None:
    ran = Ran(NOW_S, 225.25, 2323.0, "modeled", tells_its_end)
    (action,) = experiments(entities(study(tmp_path, [ran])))
    begin_ns, end_ns = times_ns(action)
    assert end_ns - begin_ns == 225_250 * MS


def test_two_batches_run_beside_each_other_and_a_later_one_resumes(tmp_path: Path) -> None:
    beside = [Ran(NOW_S, 50, 500, "modeled"), Ran(NOW_S + 10, 20, 900, "modeled")]
    days_later = Ran(NOW_S + 3, 200_000, 7, "measured")  # interrupted, and gone on with
    found = entities(study(tmp_path, [*beside, days_later], [NOW_S + 200_100]))
    in_order(found)
    assert times_ns(found["#workflow-run"]) == (NOW_S * S, (NOW_S + 200_100) * S)


def test_the_report_is_from_its_first_file_to_its_last_without_those_of_an_earlier_one(
    tmp_path: Path,
) -> None:
    earlier, table, figure = NOW_S - 500, NOW_S + 130, NOW_S + 120
    found = entities(study(tmp_path, [Ran(NOW_S, 100, 1)], [table, figure, earlier]))
    assert times_ns(found["#report"]) == (figure * S, table * S)
    in_order(found)


def test_a_crate_is_not_dated_after_its_own_file(tmp_path: Path) -> None:
    now_s = time.time()
    home = study(tmp_path, [Ran(now_s - 60, 30, 3000, "modeled")], [now_s - 20])
    found = entities(home)
    in_order(found)
    published_ns = instant_ns(found["./"]["datePublished"])
    assert now_s * S - MS <= published_ns <= (home / "ro-crate-metadata.json").stat().st_mtime_ns


def test_a_clock_that_was_set_back_during_a_run_does_not_end_it_before_it_began(
    tmp_path: Path,
) -> None:
    found = entities(study(tmp_path, [Ran(NOW_S, -30, 1)]))
    in_order(found)


def test_a_run_that_does_not_tell_when_it_began_is_named(tmp_path: Path) -> None:
    home = study(tmp_path, [Ran(NOW_S, 1, 1)])
    (path,) = tmp_path.glob("experiments/*/run.json")
    facts = read_json(path)
    del facts["clock"]["run_start_utc_ns"]
    write_json(path, facts)
    with pytest.raises(BadInput, match=r"run\.json: clock\.run_start_utc_ns .*--force"):
        write_crate(home.name, tmp_path)


def test_a_study_without_tables_has_nothing_to_describe(tmp_path: Path) -> None:
    home = study(tmp_path, [Ran(NOW_S, 1, 1)])
    (home / "metrics.parquet").unlink()
    with pytest.raises(BadInput, match=r"metrics\.parquet: write it with `kvscope report fake`"):
        write_crate(home.name, tmp_path)


def test_every_key_is_defined_by_the_context(tmp_path: Path) -> None:
    home = study(tmp_path, [Ran(NOW_S, 1, 1)])
    context = read_json(write_crate(home.name, tmp_path))["@context"]
    assert "https://w3id.org/ro/crate/1.1/context" in context
    assert {"sha256": "http://schema.org/sha256"} in context  # RO-Crate 1.1 has no such term
