"""Additions of a package besides options: commands, files to import, pages, tables, times."""

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from kvscope.base import plugins
from kvscope.base.errors import EXIT_BAD_INPUT, EXIT_DONE, BadInput
from kvscope.cli import docs
from kvscope.cli.main import main
from kvscope.collect import importer
from kvscope.plan import layers, registry
from kvscope.plan.grid import expand
from kvscope.plan.layers import SHIPPED_CONFIG
from kvscope.report import section
from kvscope.report.check_study import study_complaints
from kvscope.report.data import StudyData
from kvscope.report.figures import registry as figures
from kvscope.report.load import load
from kvscope.report.study import report
from kvscope.tables.runfile import RUN_FILE

from .report_fixture import Fake, write_experiment, write_study

TOYS = Path(__file__).parents[1] / "toys"
CACHES = (plugins.names, plugins.find, docs.blocks, figures.figures)
Install = Callable[[str], None]


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The toys' directory is where installed packages are; others than kvscope add only options."""
    layers.package_directories()
    for kind in registry.KINDS:
        registry.find_registered(kind)
    monkeypatch.syspath_prepend(str(TOYS))
    monkeypatch.setattr(plugins, "entry_points", _of_tests)
    for cached in CACHES:
        cached.cache_clear()
    yield
    for cached in CACHES:
        cached.cache_clear()


def _of_tests(group: str, name: str | None = None) -> list[EntryPoint]:
    return [
        point
        for point in entry_points(group=group)
        if name in (None, point.name)
        and point.dist
        and point.dist.name in ("kvscope", "kvscope-model", "toys", "odd")
    ]


def _without_costs(group: str, name: str | None = None) -> list[EntryPoint]:
    result = [] if group == "kvscope.cost" else entry_points(group=group)
    return [point for point in result if name in (None, point.name)]


def _commands_alone(group: str, name: str | None = None) -> list[EntryPoint]:
    return _of_tests(group, name) if group == "kvscope.command" else []


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package with this entry_points.txt."""

    def as_pip_does(points: str) -> None:
        record = tmp_path / "packages" / "odd-1.dist-info"
        record.mkdir(parents=True)
        (record / "METADATA").write_text("Name: odd\nVersion: 1\n")
        (record / "entry_points.txt").write_text(points)
        monkeypatch.syspath_prepend(str(tmp_path / "packages"))

    return as_pip_does


def test_a_command_stands_after_kvscopes_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["greet", "you"]) == EXIT_DONE
    assert capsys.readouterr().out == "hello you\n"
    with pytest.raises(SystemExit):
        main(["--help"])
    words = capsys.readouterr().out.split()
    assert words.index("shipped") < words.index("greet")


@pytest.mark.parametrize(
    ("point", "sentence"),
    [
        ("bad = nowhere:bad", "command bad cannot be loaded from odd 1, nowhere:bad (ModuleNot"),
        ("bad = os:sep", "kvscope.command bad is os:sep, which must be a kvscope.cli.commands."),
        ("plan = kvscope.cli.commands.plan:plan", "'plan' is a command of kvscope"),
        ("greet = toy_wing:LINES", "'greet' is registered twice as kvscope.command, toy_wing:L"),
    ],
)
def test_a_command_that_cannot_be_used_is_named_and_the_others_work(
    install: Install, point: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    install(f"[kvscope.command]\n{point}\n")
    assert main(["shipped"]) == EXIT_DONE
    assert sentence in capsys.readouterr().err


def test_files_of_a_registered_kind_are_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}\n")
    files, out = [str(tmp_path / "a"), str(tmp_path / "b")], str(tmp_path / "run")
    assert main(["import", "lines", *files, "--series", "x", "--out", out]) == EXIT_DONE
    assert capsys.readouterr().out == f"2 lines of x\n{out}\n"
    assert main(["import", "other", *files, "--out", out]) == EXIT_BAD_INPUT
    assert "unknown kind 'other'; known: lines" in capsys.readouterr().err


def test_files_of_a_kind_that_a_package_recognises_are_collected(
    tmp_path: Path, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_experiment(Fake({"seed": 1}), tmp_path)
    (run / "packed").mkdir()
    for path in [path for path in run.iterdir() if path.is_file()]:
        path.rename(run / "packed" / path.name)
    assert main(["collect", str(run), "--out", str(tmp_path / "out")]) == EXIT_DONE
    result = capsys.readouterr()
    assert result.out == f"{tmp_path / 'out'}\n"
    assert "files were packed" in result.err
    assert (run / RUN_FILE).is_file()
    install("[kvscope.collector]\nagain = toy_wing:PACKED\n")
    plugins.names.cache_clear()
    assert main(["collect", str(run)]) == EXIT_BAD_INPUT
    assert "has files of again and packed, collectors of installed" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_page_stands_beside_the_report_and_its_tables_are_checked(tmp_path: Path) -> None:
    results = write_study(tmp_path, [Fake({"seed": 1})])
    written = report(["fake"], results, None)
    html = written.read_text(encoding="utf-8")
    assert '<a href="words.html">Words</a>: those of the title.' in html
    assert "the words of the title" in html
    assert "Tokens of each request" in html  # the figure of the toys
    assert written.with_name("figures").joinpath("tokens_a_request.pdf").is_file()
    table = written.with_name("words.csv")
    assert not any("words.csv" in told for told in study_complaints(table.parent, tmp_path))
    table.write_text("word\nother\n")
    assert not (written.parent / "paper.html").exists()
    report(["fake"], results, None)
    assert table.read_text().split() == ["word", "A", "study", "made", "for", "tests"]


def test_a_section_that_fails_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = write_study(tmp_path, [Fake({"seed": 1})])
    shown, failing = (section.Report(load(["fake"], results), results) for _ in range(2))
    toy = section.sections()["toy_passes"]
    assert section.show("toy_passes", toy, shown)
    monkeypatch.delattr(StudyData, "complete")
    with pytest.raises(
        BadInput, match=r"section toy_passes of toys 0\.1, toy_section:PASSES raised"
    ):
        section.show("toy_passes", toy, failing)


def test_a_section_that_has_nothing_of_a_study_is_not_on_its_page(tmp_path: Path) -> None:
    results = write_study(tmp_path, [Fake({"seed": 1}, status=None)])
    html = report(["fake"], results, None).read_text(encoding="utf-8")
    assert "Passes of each run" not in html
    assert "toyCounts" in html  # every page has these scripts


@pytest.mark.parametrize("name", ["table", "data-x", "1st"])
def test_an_id_that_a_section_cannot_have_is_refused(install: Install, name: str) -> None:
    install(f"[kvscope.section]\n{name} = toy_section:PASSES\n")
    with pytest.raises(BadInput, match=f"section '{name}' of odd 1, toy_section:PASSES: "):
        section.sections()


def test_a_section_of_kvscope_is_not_replaced(install: Install) -> None:
    install("[kvscope.section]\nfindings = toy_section:PASSES\n")
    with pytest.raises(BadInput, match=r"'findings' is registered twice as kvscope\.section"):
        section.sections()


def test_without_a_cost_model_what_needs_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "entry_points", _without_costs)
    with pytest.raises(BadInput, match="no package with a cost model is installed"):
        expand(None, ["device=cpu", "overflow.victim=cheapest"], SHIPPED_CONFIG)


def test_a_document_has_its_table() -> None:
    text = "<!-- generated: toys -->\n<!-- end -->"
    assert docs.regenerate(text) == "<!-- generated: toys -->\ntoys\n<!-- end -->"


def test_an_unknown_kind_names_what_is_known() -> None:
    with pytest.raises(BadInput, match=r"no installed package registers 'x' .*known: lines"):
        importer.importer("x")
