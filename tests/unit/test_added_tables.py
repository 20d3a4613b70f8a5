"""Tables of other packages: refusals in one sentence, and checks of their contents."""

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from kvscope import tables
from kvscope.base import plugins
from kvscope.base.errors import BadInput, KvscopeError
from kvscope.base.layout import experiment_directory
from kvscope.engine.added import AddedRecorders, RowRecorder, Seconds
from kvscope.engine.recording import Recording
from kvscope.judge.oracles.added import added_differ
from kvscope.judge.records import Records
from kvscope.plan.grid import expand
from kvscope.run import campaign, lifecycle
from kvscope.run.added import added_rows
from kvscope.run.provenance import table_origins
from kvscope.tables import STEPS, attempts, runfile
from kvscope.tables.added import AddedTable, added_tables, find_table
from kvscope.tables.column import F64, I32, INTS, TEXT, Table, derived, key, told, witnessed
from tests.run_records import facts_of, record_of

ROOT = Path(__file__).parents[2]
NAME = "levels"
REPEAT, STEP, LEVEL = (key(name, I32, "") for name in ("repeat", "step", "level"))
TABLE = Table(
    NAME,
    "a level of a pass",
    (
        *(REPEAT, STEP, LEVEL, told("tokens", I32, ""), told("note", TEXT, "", null="rows")),
        *(told("places", INTS, "", null="rows"), witnessed("twice", I32, "")),
        *(derived("square", F64, ""), derived("total", I32, "")),
    ),
)
ROW = {"step": 0, "level": 0, "tokens": 3, "twice": 6, "places": [1, 2]}
CACHES = (plugins.names, plugins.find, added_tables)


class Given(RowRecorder):
    """Gives rows that are set."""

    given: Any = (ROW, ROW | {"step": 1, "note": "late", "places": None})

    def rows(self, seconds: Seconds) -> Iterable[Mapping[str, Any]]:
        return self.given  # type: ignore[no-any-return]


class Faulty(Given):
    """Fails whenever a request comes."""

    error: type[BaseException] = KeyError

    def arrived(self, time_ns: int, request: Any) -> None:
        raise self.error(f"no {request}")


class Unfinished(RowRecorder):
    pass


class Asking(Given):
    def __init__(self, why: str) -> None:
        """It cannot be made without arguments."""


class Leaving(Given):
    def __init__(self) -> None:
        """It ends the process."""
        sys.exit(3)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(square=rows["tokens"] ** 2.0, total=rows["tokens"].cumsum())


def follows(repeat: Any) -> pd.DataFrame:
    return pd.DataFrame({"step": [0, 1], "level": [0, 0], "twice": [6, 6]})


ADDED = AddedTable(TABLE, "own_package:Given", derive, follows)
NO_TABLE = AddedTable("x", "own_package:Given")  # type: ignore[arg-type]
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package that registers these objects as tables, by name."""

    def as_pip_does(of: str = "own", **added: Any) -> None:
        module = ModuleType(f"{of}_package")
        vars(module).update({attribute(name): one for name, one in added.items()})
        vars(module).update(Given=Given, Faulty=Faulty, Asking=Asking)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        record = tmp_path / f"{of}-1.dist-info"
        record.mkdir()
        (record / "METADATA").write_text(f"Name: {of}\nVersion: 1\n")
        points = (f"{name} = {module.__name__}:{attribute(name)}" for name in added)
        text = "\n".join(["[kvscope.table]", *points])
        (record / "entry_points.txt").write_text(text)
        for cached in CACHES:
            cached.cache_clear()

    monkeypatch.syspath_prepend(str(tmp_path))
    yield as_pip_does
    for cached in CACHES:
        cached.cache_clear()


def attribute(name: str) -> str:
    return name if name.isidentifier() else "odd"


OF = "table levels of own 1, own_package:levels"


def recorded(rows: Any = Given.given, repeat: int = 0) -> pd.DataFrame:
    recorder = Given()
    recorder.given = rows
    return added_rows(Recording(added={NAME: recorder}), repeat, lambda ns: ns / 1e9)[NAME]


# -------------------------------------------------------------------------- refused tables


@pytest.mark.parametrize(
    ("added", "words"),
    [
        (NO_TABLE, "has 'x' as `table`, which must be a kvscope.tables.column.Table"),
        (replace(ADDED, table=replace(TABLE, name="x")), "is a table named 'x'; give both one"),
        (
            replace(ADDED, table=replace(TABLE, columns=(REPEAT, LEVEL, STEP))),
            r"has the keys \['repeat', 'level', 'step'\], which must begin with \['repeat', 'step",
        ),
        (
            replace(ADDED, table=replace(TABLE, columns=(REPEAT, key("step", F64, "")))),
            "has the key step of another type than int32",
        ),
        (
            replace(ADDED, table=replace(TABLE, columns=(*TABLE.columns, LEVEL))),
            r"has several columns \['level'\], whose names must differ",
        ),
        (replace(ADDED, follows=None), "has witnessed columns, and `follows` does not say"),
    ],
)
def test_an_invalid_table_is_named_with_its_package(added, words: str, install: Install):
    install(levels=added)
    with pytest.raises(BadInput, match=rf"^kvscope.table levels \(own 1, own_.*\) {words}"):
        added_tables()


@pytest.mark.parametrize("name", ["steps", "metrics", "a/b", "../b", "a b", "a.b", "-"])
def test_a_name_must_be_one_of_a_file_that_kvscope_has_not(name: str, install: Install):
    install(**{name: replace(ADDED, table=replace(TABLE, name=name))})
    with pytest.raises(BadInput, match=f"kvscope.table {name} .* must have a name of letters"):
        added_tables()
    places = [Path("run") / file for file in runfile.recorded_files()]
    assert all(place.parent == Path("run") for place in places), "nothing else is moved or removed"
    assert f"{name}.parquet" not in runfile.recorded_files() or name.isidentifier()


def test_two_packages_with_one_table_are_both_named(install: Install):
    install(levels=ADDED)
    install(of="other", levels=ADDED)
    with pytest.raises(BadInput, match=r"levels' is registered twice .*other_pack.* and own_pack"):
        added_tables()


def test_a_table_is_found_by_its_name_where_its_package_is(install: Install):
    assert find_table(NAME) is None
    install(levels=ADDED)
    assert find_table(NAME) is TABLE
    assert find_table("steps") is STEPS
    assert "levels.parquet" in runfile.recorded_files()


def test_a_file_of_it_goes_with_the_measurement_that_recorded_it(tmp_path: Path, install: Install):
    """The file goes, too, if its package is no longer installed."""
    install(levels=ADDED)
    run = tmp_path / "run"
    for of in ("old", "new"):
        attempt = attempts.begin_attempt(run)
        (attempt / "steps.parquet").write_text(of)
        if of == "old":
            (attempt / TABLE.file).write_text(of)
        facts: dict[str, Any] = {"experiment_id": "x", "status": "complete", "reason": None}
        runfile.write_run(attempt, facts | {"files": runfile.file_records(attempt)})
        attempts.settle(run)
        assert (run / TABLE.file).exists() == (of == "old")
        (tmp_path / "own-1.dist-info" / "entry_points.txt").unlink(missing_ok=True)
        for cached in CACHES:
            cached.cache_clear()
    assert runfile.read_record(run).files.keys() == {"steps.parquet"}


def test_a_run_names_the_package_and_version_of_each_of_its_tables(install: Install):
    install(levels=ADDED, others=replace(ADDED, table=replace(TABLE, name="others")))
    assert table_origins({"steps.parquet", TABLE.file}) == {TABLE.file: "own 1, own_package:levels"}


# ----------------------------------------------------------------- of a campaign that was killed


OTHER = replace(ADDED, table=replace(TABLE, columns=(*TABLE.columns, told("share", F64, ""))))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("now", "words"),
    [
        (NO_TABLE, r"kvscope.table levels \(own 1, own_package:levels\) has 'x' as `table`.*"),
        (7, "kvscope.table levels is own_package:levels, which must be a .*AddedTable.*"),
        (OTHER, f".*levels.parquet: column 'share' is missing: {OF} has changed since; install.*"),
    ],
)
def test_a_campaign_ends_with_a_sentence_and_keeps_what_it_measured(
    now: Any, words: str, tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
):
    """It goes on once its package is as it was."""

    class Killed(Exception):
        def __init__(self, *_: Any) -> None:
            raise self

    monkeypatch.setattr(campaign, "Zygote", Killed)
    monkeypatch.setattr(lifecycle, "require_vllm", lambda computes: None)
    overrides = ["workload=fixed", "workload.num_requests=2", "profiler=none", "repeats=3"]
    experiment = expand(None, overrides, ROOT / "config").experiments[0].experiment
    directory = experiment_directory(tmp_path, experiment.id)
    attempt = directory / attempts.ATTEMPT

    def measure() -> Any:
        wanted = [campaign.Wanted(experiment, directory)]
        return str(campaign.measure(wanted, print)[experiment.id])

    install(levels=ADDED)
    with pytest.raises(Killed):
        measure()
    tables.write(TABLE, recorded(), attempt / TABLE.file)
    before = {path.name: path.read_bytes() for path in attempt.iterdir()}

    module = sys.modules["own_package"]
    monkeypatch.setattr(module, "levels", now)
    added_tables.cache_clear()
    assert re.fullmatch(f"{words}; once that is mended, run this again: .* is kept", measure())

    monkeypatch.setattr(module, "levels", ADDED)
    added_tables.cache_clear()
    with pytest.raises(Killed):
        measure()
    assert {name: (attempt / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("name", ["served", "record", "directory", "repeats", NAME])
def test_a_table_may_be_named_as_anything_else_that_a_run_has(
    name: str, tmp_path: Path, install: Install
):
    table = replace(TABLE, name=name)
    install(**{name: replace(ADDED, table=table)})
    recorder = Given()
    result = added_rows(Recording(added={name: recorder}), 0, float)[name]
    tables.write(table, result, tmp_path / table.file)
    runfile.write_run(tmp_path, facts_of(files=runfile.file_records(tmp_path)))
    run = Records(tmp_path)
    assert run.added_names == [name]
    pd.testing.assert_frame_equal(run.added(name), result)
    assert run.of_repeat(1).added(name).empty
    assert run.directory == tmp_path
    assert run.record.complete
    fewer = run.variant(added={name: result[:1]})
    assert fewer.added(name).equals(result[:1])
    assert fewer.variant(record=run.record).added(name).equals(result[:1])
    assert len(run.variant().added(name)) == 2
    assert run.variant(record=record_of()).added_names == []


# -------------------------------------------------------------------------------- its recorder


@pytest.mark.parametrize(
    ("recorder", "said"),
    [
        ("no_such_module:Given", r" \(ModuleNotFoundError: No module named 'no_such_module'\)"),
        ("own_package:Nothing", r" \(AttributeError: .*'Nothing'\)"),
        (7, r" \(TypeError: .*\)"),
        ("collections:OrderedDict", ""),
        ("os.path:join", ""),
        ("kvscope.engine.observer:Recorder", ""),
        ("own_package:Asking", r" \(TypeError: .*required positional argument: 'why'\)"),
        (f"{__name__}:Leaving", r" \(SystemExit: 3\)"),
        (f"{__name__}:Unfinished", r" \(TypeError: Can't instantiate .*\)"),
    ],
)
def test_an_invalid_recorder_is_refused_before_it_is_needed(recorder, said, install: Install):
    install(levels=replace(ADDED, recorder=recorder))
    with pytest.raises(
        BadInput, match=rf"^{OF} has the recorder .*RowRecorder, made without.*{said};"
    ):
        AddedRecorders(Scheduler(), lambda: 0)


class Scheduler(SimpleNamespace):
    """The methods that are observed."""

    def __init__(self) -> None:
        super().__init__(
            **{name: lambda *_: None for name in ("add_request", "schedule", "shutdown")},
            **{name: lambda *_: None for name in ("update_from_output", "_preempt_request")},
            _free_request=lambda *_: None,
            kv_cache_manager=SimpleNamespace(record_prefix_cache_stats=lambda *_: None),
        )


@pytest.mark.parametrize("error", [KeyError, SystemExit])
def test_a_recorder_that_fails_is_named_with_its_table(
    error: type[BaseException], install: Install, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Faulty, "error", error)
    install(levels=replace(ADDED, recorder="own_package:Faulty"))
    scheduler, recording = Scheduler(), Recording()
    recorders = AddedRecorders(scheduler, lambda: 0)
    scheduler.add_request("request 1")  # before a repeat nothing is recorded
    recorders.begin(recording)
    with pytest.raises(KvscopeError, match=f"Faulty of {OF} raised {error.__name__}: .*request 2"):
        scheduler.add_request("request 2")
    assert recording.added.keys() == {NAME}


def test_each_repeat_has_a_recorder_of_its_own(install: Install):
    install(levels=ADDED)
    recorders, recordings = AddedRecorders(Scheduler(), lambda: 0), [Recording(), Recording()]
    for recording in recordings:
        recorders.begin(recording)
    first, second = (recording.added[NAME] for recording in recordings)
    assert type(first) is type(second) is Given
    assert first is not second


# ------------------------------------------------------------------------------------ its rows


def test_rows_have_the_types_and_the_repeat_of_their_table(install: Install):
    install(levels=ADDED)
    result = recorded(repeat=2)
    assert result.columns.tolist() == TABLE.names
    assert result[["repeat", "tokens", "twice", "total"]].dtypes.eq("int32").all()
    assert result["repeat"].tolist() == [2, 2]
    assert result["note"].isna().tolist() == [True, False]
    assert result["square"].tolist() == [9.0, 9.0]
    assert [*result["places"][0]] == [1, 2]


def test_times_are_seconds_of_the_repeat(install: Install):
    class Timed(Given):
        def rows(self, seconds: Seconds) -> Iterable[Mapping[str, Any]]:
            return [ROW | {"note": str(seconds(5))}]

    install(levels=ADDED)
    result = added_rows(Recording(added={NAME: Timed()}), 0, lambda ns: ns * 1e-9)
    assert result[NAME]["note"].tolist() == ["5e-09"]


@pytest.mark.parametrize("null", [None, math.nan])
def test_a_count_may_be_null_where_its_table_says_so(null: Any, install: Install):
    table = replace(TABLE, columns=(REPEAT, STEP, told("rank", I32, "", null="rows")))
    install(levels=AddedTable(table, "own_package:Given"))
    result = recorded([{"step": 0, "rank": null}, {"step": 1, "rank": 7}, {"step": 2}])
    assert result["rank"].isna().tolist() == [True, False, True]
    assert result["rank"][1] == 7


@pytest.mark.parametrize("rows", [[], iter([ROW]), (ROW | {"step": at} for at in range(3))])
def test_rows_may_be_any_iterable_and_none(rows, install: Install):
    install(levels=ADDED)
    assert recorded(rows).columns.tolist() == TABLE.names


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"tokens": 2**31}, "gave 2147483648 as tokens, which must be of type int32"),
        ({"tokens": 1.5}, "gave 1.5 as tokens, which must be of type int32"),
        ({"tokens": True}, "gave True as tokens, which must be of type int32"),
        ({"tokens": None}, "gave None as tokens, which must be of type int32"),
        ({"tokens": 2**70}, "gave 1180591620717411303424 as tokens, which must be of type int32"),
        ({"level": "low"}, "gave 'low' as level, which must be of type int32"),
        ({"note": 3}, "gave 3 as note, which must be of type string"),
        ({"places": [1, "x"]}, r"gave \[1, 'x'\] as places, which must be of type list<"),
        ({"colour": 3}, "gave a row with 'colour', which the table does not declare"),
        ({"repeat": 3}, "gave a row with 'repeat', which the table does not declare"),
        ({"square": 3}, "gave a row with 'square', which the table does not declare"),
        ({"step": 0}, "gave a second row of the same keys"),
    ],
)
def test_a_row_that_is_not_as_declared_is_named_with_its_value(second, words, install: Install):
    install(levels=ADDED)
    with pytest.raises(KvscopeError) as raised:
        recorded([ROW, ROW | {"step": 1} | second])
    message = str(raised.value)
    assert message.startswith(f"recorder own_package:Given of {OF} gave ")
    assert re.search(words, message)
    assert "(row 1" in message
    assert f"level {second.get('level', 0)!r}" in message
    assert message.endswith("; fix its package")
    assert not isinstance(raised.value, BadInput), "repeats that were measured are kept"


@pytest.mark.parametrize("name", ["step", "level", "tokens", "twice"])
def test_a_row_has_every_column_that_may_not_be_null(name: str, install: Install):
    install(levels=ADDED)
    rows = [ROW, {of: value for of, value in ROW.items() if of != name}]
    with pytest.raises(KvscopeError, match=rf"gave a row without {name} \(row 1"):
        recorded(rows)


@pytest.mark.parametrize("rows", [None, 3, [3], ["ab"]])
def test_recorders_that_return_no_rows_are_reported_too(rows: Any, install: Install):
    install(levels=ADDED)
    with pytest.raises(KvscopeError, match=f"recorder own_package:Given of {OF} .*; fix its pack"):
        recorded(rows)


# ------------------------------------------------------------------------- derived and witnessed


def changed(name: str, value: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda rows: derive(rows).assign(**{name: value})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda rows: rows["x"], "raised KeyError: 'x'"),
        (lambda rows: sys.exit(3), "raised SystemExit: 3"),
        (lambda rows: None, "returned no DataFrame with a column 'repeat'"),
        (lambda rows: rows, "returned no DataFrame with a column 'square'"),
        (lambda rows: derive(rows)[1:], "returned other rows than it was given, or in another"),
        (lambda rows: derive(rows)[::-1], "returned other rows than it was given, or in another"),
        (changed("square", "x"), "raised ArrowInvalid: .*'x'.* column square"),
        (changed("total", 2**31), "raised ArrowInvalid: .*2147483648.* column total"),
    ],
)
def test_faults_of_derive_are_reported(wrong, words: str, install: Install):
    install(levels=replace(ADDED, derive=wrong))
    with pytest.raises(KvscopeError, match=f"^`derive` of {OF} {words}.*; fix its package$"):
        recorded()


def test_derive_changes_nothing_that_was_recorded(install: Install):
    def meddle(rows: pd.DataFrame) -> pd.DataFrame:
        rows["tokens"] = 7
        return derive(rows).set_index(pd.Index([5, 6]))

    install(levels=replace(ADDED, derive=meddle))
    result = recorded()
    assert result["tokens"].tolist() == [3, 3]
    assert result["square"].tolist() == [49.0, 49.0]


@dataclass
class Stored:
    """A run of some repeats that has the table."""

    rows: list[pd.DataFrame]
    added_names: list[str] = field(default_factory=lambda: [NAME])

    @property
    def added_tables(self) -> dict[str, AddedTable]:
        return added_tables()

    def repeats(self) -> Iterator[Any]:
        for number, rows in enumerate(self.rows):
            of_the_run = rows.set_index(rows.index + 10 * number)
            yield SimpleNamespace(repeat=number, added={NAME: of_the_run}.__getitem__)


def judged(*rows: pd.DataFrame) -> Any:
    return added_differ(SimpleNamespace(records=Stored(list(rows))))  # type: ignore[arg-type]


def test_the_oracle_derives_of_each_repeat_and_type_as_the_recorder_did(install: Install):
    """A sum over a repeat begins with the repeat, and squares are of the stored values."""

    def product(rows: pd.DataFrame) -> pd.DataFrame:
        assert "square" not in rows
        places = pd.Series(range(len(rows)))  # by the index
        return derive(rows).assign(square=rows["tokens"] * rows["tokens"] * (places + 1.0))

    install(levels=replace(ADDED, derive=product))
    rows = [ROW | {"tokens": 50_000}, ROW | {"step": 1}]
    assert not judged(recorded(rows), recorded(rows, repeat=1))


@pytest.mark.parametrize("column", ["twice", "square", "total"])
@pytest.mark.parametrize("repeat", [0, 1])
@pytest.mark.parametrize("row", [0, 1])
def test_a_derived_cell_is_compared_with_its_derivation(column, repeat, row, install: Install):
    install(levels=ADDED)
    stored = [recorded(), recorded(repeat=1)]
    assert not judged(*stored)
    expected: Any = stored[repeat].loc[row, column]
    stored[repeat].loc[row, column] += 1
    result = judged(*stored)
    assert result.count == 1
    assert result.first == (
        f"levels.{column} is {int(expected) + 1}, its package gives {int(expected)} "
        f"(repeat {repeat}, step {row}, level 0)"
    )


def test_an_added_table_must_have_exactly_the_derived_rows(install: Install):
    install(levels=ADDED)
    assert judged(recorded()[:1]).first == (
        "levels lacks a row that its package gives (repeat 0, step 1, level 0)"
    )
    more = recorded([*Given.given, ROW | {"level": 1}])
    assert judged(more).first == (
        "levels has a row that its package does not give (repeat 0, step 0, level 1)"
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda repeat: repeat.nothing, "raised AttributeError: .*nothing'"),
        (lambda repeat: None, "returned no DataFrame with a column 'step'"),
        (lambda repeat: follows(repeat)[["step", "level"]], "returned no Data.* column 'twice'"),
        (lambda repeat: pd.concat([follows(repeat)] * 2), "returned two rows of the same keys"),
        (lambda repeat: follows(repeat).assign(twice="x"), "raised ArrowInvalid: .*'x'.*twice"),
    ],
)
def test_faults_of_follows_violate_the_oracle(wrong, words: str, install: Install):
    """The other oracles, and metrics, are worth having."""
    install(levels=replace(ADDED, follows=wrong))
    result = judged(recorded(), recorded(repeat=1))
    assert result.count == 2
    assert re.fullmatch(rf"`follows` of {OF} {words}.*package \(repeat 0\)", result.first)


def test_floats_may_be_summed_in_another_order_and_differ_no_more(install: Install):
    table = replace(TABLE, columns=(*TABLE.columns[:3], witnessed("share", F64, "")))
    shares = pd.DataFrame({"step": [0], "level": [0], "share": [0.3]})
    install(levels=AddedTable(table, "own_package:Given", follows=lambda _: shares))
    row = {"step": 0, "level": 0}
    assert not judged(recorded([row | {"share": 0.1 + 0.2}]))
    assert judged(recorded([row | {"share": 0.3001}]))
