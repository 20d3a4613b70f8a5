"""A rehearsed run, by a CPU in the place of its GPU, is never taken for a measured one."""

import base64
import json
import math
import re
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvscope import tables
from kvscope.base.time_sources import MEASURED, MODELED, NOT_MEASURED, REHEARSED, mark_of
from kvscope.cli.main import main
from kvscope.collect.importer import PUBLISHED
from kvscope.collect.timeline.perfetto import write_perfetto
from kvscope.judge.checklist import checklist
from kvscope.judge.records import Records, read_records
from kvscope.metrics.experiment import analyse
from kvscope.plan.devices.cuda import Cuda
from kvscope.plan.grid import expand
from kvscope.plan.layers import SHIPPED_CONFIG
from kvscope.plan.walltime import _ratio
from kvscope.report.comparisons import pairs
from kvscope.report.data import StudyData
from kvscope.report.findings import findings, headline
from kvscope.report.load import load
from kvscope.report.study import report
from kvscope.report.tables import experiments_table
from kvscope.tables.results import Run
from kvscope.tables.runfile import file_records, read_run, write_run
from kvscope.tables.verdict import VIOLATED
from tests.run_records import facts_of

from .report_fixture import Fake, write_study

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

FAKES = [
    Fake({"cache.blocks": 96}, stall=False, noise=0.002, source=REHEARSED),
    Fake({"cache.blocks": 24}, "swap", stall=False, noise=0.002, source=REHEARSED),
]
MEASURED_FAKES = [
    replace(fake, source=MEASURED, varied=fake.varied | {"device": "cpu"}) for fake in FAKES
]
MIXED = [replace(fake, varied=fake.varied | {"device": "cuda"}) for fake in FAKES]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("rehearsed"), FAKES)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> StudyData:
    results = write_study(tmp_path_factory.mktemp("mixed"), [*MIXED, *MEASURED_FAKES])
    return load(["fake"], results)


@pytest.fixture
def results(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def runs_of(results: Path) -> list[Path]:
    return [results / "experiments" / fake.id for fake in FAKES]


# ------------------------------------------------------------------ what the records say


def test_a_rehearsed_run_is_valid_and_called_rehearsed(results: Path) -> None:
    for run in load(["fake"], results).runs:
        assert (run.valid, run.time_source, run.rehearsed) == (True, REHEARSED, True), run.doubts


def write_source(run: Path, source: str, *names: str) -> None:
    """Make these tables, or all that can, say another source, with their hashes."""
    for table in tables.HOST_TABLES:
        path = run / table.file
        if path.exists() and "time_source" in table.names and (table.name in names or not names):
            tables.write(table, tables.read(table, path).assign(time_source=source), path)
    write_run(run, read_run(run) | {"files": file_records(run)})


def violated(run: Path) -> dict[str, str]:
    result = checklist(read_records(run))
    return {verdict.name: verdict.first for verdict in result if verdict.state == VIOLATED}


@pytest.mark.parametrize("name", ["steps", "preemptions", "transfers"])
@pytest.mark.parametrize(("of_run", "of_row"), [(REHEARSED, MEASURED), (MEASURED, REHEARSED)])
def test_a_row_that_says_another_source_is_noticed(
    results: Path, name: str, of_run: str, of_row: str
) -> None:
    run = runs_of(results)[1]
    write_source(run, of_run)
    write_run(run, read_run(run) | {"time_source": of_run})
    records = read_records(run)
    assert not [verdict for verdict in checklist(records) if verdict.state == VIOLATED]
    frame = getattr(records, name).copy()
    frame.loc[frame.index[-1], "time_source"] = of_row
    result = checklist(records.variant(**{name: frame}))
    (wrong,) = [verdict for verdict in result if verdict.state == VIOLATED]
    assert (wrong.name, wrong.violations) == ("time_source_differs", 1)
    assert f"{name}: time_source is not {of_run}" in wrong.first


def test_a_record_without_the_label_is_violated_by_tables_that_have_it(results: Path) -> None:
    run = runs_of(results)[0]
    facts = read_run(run)
    del facts["time_source"]
    write_run(run, facts)
    result = violated(run)
    assert "time_source is not in run.json" in result["time_source_differs"]
    assert "facts_differ" in result


def test_only_a_gpu_can_be_rehearsed(results: Path) -> None:
    assert Cuda.time_sources() == (MEASURED, REHEARSED)
    run = runs_of(results)[0]
    records = read_records(run)
    settings = records.settings | {"device": {"name": "cpu", "threads": 1}}
    result = checklist(records.variant(settings=settings))
    (wrong,) = [
        verdict.first
        for verdict in result
        if verdict.state == VIOLATED and verdict.name == "facts_differ"
    ]
    assert "time_source is rehearsed, the settings have measured" in wrong


def test_the_planner_learns_no_walltime_of_a_gpu_from_a_rehearsal(results: Path) -> None:
    (planned,) = expand(None, ["device=cuda"], SHIPPED_CONFIG).experiments
    run = runs_of(results)[0]
    assert _ratio(run, planned.experiment) is None
    write_source(run, MEASURED)
    write_run(run, read_run(run) | {"time_source": MEASURED})
    assert _ratio(run, planned.experiment)


# ------------------------------------------------------------------ one answer, and refusals


def drop_label(run: Path) -> None:
    facts = read_run(run)
    del facts["time_source"]
    write_run(run, facts)


def forge_label(run: Path) -> None:
    write_run(run, read_run(run) | {"time_source": MEASURED})


def drop_and_analyse(run: Path) -> None:
    drop_label(run)
    analyse(run, run.parents[1] / "tables" / run.name)


def forge_and_analyse(run: Path) -> None:
    forge_label(run)
    analyse(run, run.parents[1] / "tables" / run.name)


def forge_tables(run: Path) -> None:
    write_source(run, MEASURED)


def forge_all_but_one(run: Path) -> None:
    write_source(run, MEASURED, "steps", "transfers")
    forge_label(run)


def leave(run: Path) -> None:
    """Change nothing in the records."""


Forgery = Callable[[Path], None]
FORGERIES = [
    *(leave, forge_label, forge_all_but_one),
    *(
        pytest.param(one, marks=pytest.mark.thorough)
        for one in (drop_label, drop_and_analyse, forge_and_analyse, forge_tables)
    ),
]
forgeries = pytest.mark.parametrize("forge", FORGERIES)


@pytest.fixture
def forged(results: Path, forge: Forgery) -> Path:
    forge(runs_of(results)[1])  # it has rows in every table
    return results


@forgeries
def test_whatever_is_taken_out_a_run_stays_rehearsed(forged: Path) -> None:
    run = Run(runs_of(forged)[1])
    assert run.time_source == next(run.repeats()).time_source == REHEARSED
    frame = analyse(run.directory, forged / "again")
    assert set(frame["time_source"]) == {REHEARSED}
    assert all(shown.rehearsed for shown in load(["fake"], forged).runs)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a measured run of the first experiment."""
    results = write_study(tmp_path_factory.mktemp("measured"), [replace(FAKES[0], source=MEASURED)])
    return str(results / "experiments" / FAKES[0].id)


Captured = pytest.CaptureFixture[str]


@forgeries
def test_compare_refuses_a_rehearsed_study_and_run_on_either_side(
    forged: Path, measured: str, capsys: Captured
) -> None:
    for what in (str(forged / "studies" / "fake"), str(runs_of(forged)[1])):
        for words in ([what, measured], [measured, what]):
            assert main(["compare", *words]) == 2
            output = capsys.readouterr()
            assert output.out == ""
            assert f"{what} is {NOT_MEASURED}: a CPU was in the place of its GPU" in output.err
            assert "run it where the GPU is" in output.err
            assert len(output.err.splitlines()) == 1


def test_two_rehearsals_are_not_compared_either(results: Path, capsys: Captured) -> None:
    study = str(results / "studies" / "fake")
    assert main(["compare", study, study, "--json"]) == 2
    assert NOT_MEASURED in capsys.readouterr().err


@pytest.mark.packages
@forgeries
def test_calibrate_refuses_a_rehearsed_run(forged: Path, measured: str, capsys: Captured) -> None:
    run = str(runs_of(forged)[1])
    for words in ([run], [measured, run], [measured, "--predict", run]):
        assert main(["calibrate", *words]) == 2
        assert f"calibrate: {run} is {NOT_MEASURED}" in capsys.readouterr().err


def test_other_sources_are_as_run_json_has_them_or_else_the_tables(results: Path) -> None:
    for source in (MEASURED, MODELED, PUBLISHED):
        facts = facts_of(time_source=source)
        steps = pd.DataFrame({"time_source": [source]})
        known: dict[str, Any] = {"facts": facts, "steps": steps}
        assert Records(results / "nowhere", **known).time_source == source
        assert Records(results / "nowhere", **known | {"facts": facts_of()}).time_source == source
    assert Records(results / "nowhere", facts=facts_of()).time_source == MEASURED


# ------------------------------------------------------------------ the page


class Page(HTMLParser):
    """The texts of a page with the elements around them, and the data of its charts."""

    VOID = ("meta", "input", "img", "br", "link")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[tuple[str, list[str], dict[str, str | None]]] = []
        self.told: list[tuple[str, list[str]]] = []
        self.charts: dict[str, str] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append((tag, [], dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tag, _, attributes = self.open[-1] if self.open else ("", [], {})
        if tag == "script" and str(attributes.get("id")).startswith("data-"):
            self.charts[str(attributes["id"])] = zlib.decompress(base64.b64decode(data)).decode()
        if tag in ("script", "style", "title", "option"):
            return
        around = [texts for name, texts, of in self.open if is_labelled_as_one(name, of)]
        if around:
            around[-1].append(data)
            self.told.append((data, around[-1]))


def is_labelled_as_one(name: str, attributes: dict[str, str | None]) -> bool:
    return name in ("header", "table", "section") and attributes.get("id") != "charts"


def unlabelled(page: Page) -> list[str]:
    """Texts with a number whose own table, figure or section does not have the words."""
    return [
        text.strip()
        for text, around in page.told
        if re.search(r"\d", text) and NOT_MEASURED not in "".join(around).lower()
    ]


def test_no_number_of_the_page_is_without_the_words(results: Path) -> None:
    html = report(["fake"], results, None).read_text(encoding="utf-8")
    page = Page(html)
    assert '<span class="badge rehearsed">REHEARSED</span>' in html
    assert "<strong>Rehearsed, not measured</strong>" in html
    reproduce = html.partition('<section id="reproduce">')[2]
    assert not [text for text in unlabelled(page) if text not in reproduce]
    assert len(page.charts) > 5
    for name, data in page.charts.items():
        for spec in json.loads(data)["specs"]:
            assert NOT_MEASURED in spec["title"]["text"], name
    assert "2 complete, 2 valid, 2 rehearsed, not measured" in html


@pytest.mark.thorough
def test_the_check_of_the_page_finds_what_is_not_labelled(mixed: StudyData, results: Path) -> None:
    html = report(["fake"], results, None).read_text(encoding="utf-8")
    assert unlabelled(Page(html.replace(NOT_MEASURED, "").replace("Rehearsed, not", "")))


def test_every_sentence_of_a_finding_has_the_words(results: Path) -> None:
    study = load(["fake"], results)
    assert NOT_MEASURED in headline(study).sentence
    rows = findings(study)
    assert rows.differences
    for difference in (*rows.differences, *rows.unchanged, *rows.pairs):
        assert difference.change.endswith(mark_of(REHEARSED))


def test_the_files_of_a_study_say_it_in_each_row(results: Path) -> None:
    report(["fake"], results, None)
    home = results / "studies" / "fake"
    assert set(tables.read(tables.METRICS, home / "metrics.parquet")["time_source"]) == {REHEARSED}
    assert set(pd.read_csv(home / "experiments.csv")["time_source"]) == {REHEARSED}
    compared = pd.read_csv(home / "comparisons.csv")
    assert set(compared["how"]) == {REHEARSED}


@pytest.mark.packages
@pytest.mark.thorough
def test_the_terminal_says_it_beside_the_numbers(results: Path, capsys: Captured) -> None:
    run = str(runs_of(results)[1])
    for words in (
        *(["analyse", run], ["explain", run], ["explain", run, "3"]),
        *(["status", "fake", "--results", str(results)], ["report", run, "--out", str(results)]),
    ):
        assert main(words) == 0
        assert NOT_MEASURED in capsys.readouterr().out, words
    for words in (["explain", run, "--json"], ["explain", run, "3", "--json"]):
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out)["time_source"] == REHEARSED


# ------------------------------------------------------------------ beside other runs


def test_no_ratio_is_between_a_rehearsed_run_and_another(mixed: StudyData) -> None:
    kind = {run.id: run.rehearsed for run in mixed.runs}
    assert set(kind.values()) == {True, False}
    assert all(run.valid for run in mixed.runs), [run.doubts for run in mixed.runs]
    result = [*pairs(mixed)]
    assert {pair.rehearsed for pair in result} == {True, False}
    assert all(pair.base.rehearsed == pair.other.rehearsed for pair in result)
    for one in kind:
        for other in kind:
            ratio = mixed.estimates.ratio("makespan_s", one, other)
            apart = mixed.estimates.difference("makespan_s", one, other)
            assert (ratio is None) == math.isnan(apart.value) == (kind[one] != kind[other])
    for by_run in experiments_table(mixed).differences.values():
        for one, bases in by_run.items():
            assert all(kind[one] == kind[base] for base in bases)


@pytest.mark.thorough
def test_rounds_of_a_rehearsal_say_nothing_of_measured_ones(tmp_path: Path) -> None:
    fakes = [
        replace(fake, campaign="0123456789ab", waiting=(0.0, 0.1, 0.2))
        for fake in (*MIXED, *MEASURED_FAKES)
    ]
    write_study(tmp_path, fakes)
    both = load(["fake"], tmp_path)
    alone = both.part([run for run in both.runs if not run.rehearsed])
    first, second = (run.id for run in alone.runs)
    assert both.estimates.ratio("makespan_s", first, second) == alone.estimates.ratio(
        "makespan_s", first, second
    )


@pytest.mark.thorough
def test_the_page_of_both_kinds_names_those_that_are_rehearsed(mixed: StudyData) -> None:
    place = mixed.runs[0].directory.parents[1]
    html = report(["fake"], place, None).read_text(encoding="utf-8")
    assert '<span class="badge measured">measured</span>' in html
    assert '<span class="badge rehearsed">REHEARSED</span>' in html
    assert all(run.label.endswith(" (rehearsed)") == run.rehearsed for run in mixed.runs)
    assert mixed.mark.startswith(f"{NOT_MEASURED}: ")
    assert not unlabelled_of(html)
    assert html.count(" data-rehearsed>") == 2
    assert NOT_MEASURED not in headline(mixed).sentence


def unlabelled_of(html: str) -> list[str]:
    reproduce = html.partition('<section id="reproduce">')[2]
    return [text for text in unlabelled(Page(html)) if text not in reproduce]


def test_the_trace_for_perfetto_says_it_in_the_name_of_every_track(
    results: Path, tmp_path: Path
) -> None:
    run, timeline = Run(runs_of(results)[0]), tmp_path / "timeline.parquet"
    tables.write(tables.TIMELINE, tables.TIMELINE.empty(), timeline)
    write_perfetto(timeline, run, tmp_path / "trace")
    assert b"KV blocks used (rehearsed, not measured)" in (tmp_path / "trace").read_bytes()
