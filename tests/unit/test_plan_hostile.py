"""Whatever a file or the command line holds: it is planned, or refused in one sentence."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.base.errors import EXIT_BAD_INPUT, BadInput
from kvscope.cli import main as cli
from kvscope.plan import documents, layers, overrides, study
from kvscope.plan.experiment import load
from kvscope.plan.grid import expand
from kvscope.plan.policy import Overflow

from .plugged_in import plug_in

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

CONFIG = Path(__file__).parents[2] / "config"


def read_or_refused(read: Callable[[], Any]) -> Any:
    """Result of a reader, None if it refuses in one sentence; anything else is an error."""
    try:
        return read()
    except BadInput as error:
        sentence = str(error)
    assert sentence.isprintable()
    assert len(sentence) < 1500
    return None


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
WORDS = st.sampled_from(
    [
        *(
            "",
            "..",
            "../x",
            "${seed}",
            "${a.b}",
            "${",
            "${oc.env:HOME}",
            "null",
            "1e400",
            "9" * 300,
        ),
        *(
            "cpu",
            "zipf",
            "swap",
            "workload",
            "workload.path",
            "name",
            "defaults",
            "a\nb",
            "\0",
            "<<",
        ),
    ]
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(10**30), 1e308, 2**63])
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS | WORDS
KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=8) | WORDS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in nested lists and mappings: what holds it, and its key."""
    if isinstance(value, dict):
        items = list(value.items())
    else:
        items = list(enumerate(value)) if isinstance(value, list) else []
    return [(value, key) for key, _ in items] + [p for _, item in items for p in places(item)]


@st.composite
def spoilt(draw: st.DrawFn, sound: list[Any]) -> str:
    """The text of a sound document in which some values are others, gone, or in excess."""
    value = copy.deepcopy(draw(st.sampled_from(sound)))
    for _ in range(draw(st.integers(1, 3))):
        holder, key = draw(st.sampled_from(places(value)))
        match draw(st.sampled_from(["replace", "remove", "add", "repeat"])):
            case "replace":
                holder[key] = draw(VALUES)
            case "remove":
                del holder[key]
            case "add" if isinstance(holder, dict):
                holder[draw(KEYS)] = draw(VALUES)
            case "repeat" if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
        if not places(value):
            break
    try:
        text = documents.dump(value)
    except UnicodeEncodeError:
        text = ""
    return text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 9)) == 0 else text


@pytest.mark.parametrize("content", ["", "# nothing", "[]", "3", "a: b", "? [a]\n: b", "[" * 10**5])
def test_an_invalid_experiment_is_refused_by_its_file(content: str, tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text(content)
    with pytest.raises(BadInput, match=r"experiment\.yaml"):
        load(tmp_path / "experiment.yaml")


INSTALLED = layers.options(CONFIG, "study")
STUDIES = [documents.load(path) for name, path in INSTALLED.items() if name.endswith("-cpu")] + [
    {
        "title": "T",
        "grids": [
            {
                "name": "g",
                "set": {"workload": "trace", "workload.path": "../lengths/figure6.csv"},
                "linked": [[{"seed": 1, "model": "tiny-opt"}, {"seed": 2}]],
                "product": {"cache.blocks": [128, 256], "workload.arrival": ["all_at_once"]},
                "exclude": [{"seed": 1, "cache.blocks": 128}],
            }
        ],
        "figures": ["latency"],
    }
]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(CONFIG, tmp_path_factory.mktemp("hostile") / "config"))


@given(text=spoilt(STUDIES))
def test_any_study_file_is_read_or_refused(text: str, config: Path) -> None:
    (config / "study" / "mine.yaml").write_text(text, encoding="utf-8")
    read_or_refused(lambda: study.read("mine", config))


@settings(max_examples=15)
@given(text=spoilt(STUDIES[-1:]))
def test_any_study_is_planned_or_refused(text: str, config: Path) -> None:
    (config / "study" / "mine.yaml").write_text(text, encoding="utf-8")
    plan = read_or_refused(lambda: expand("mine", [], config))
    assert plan is None or plan.experiments


OPTIONS = ["config.yaml", "workload/zipf.yaml", "overflow/swap.yaml", "tracing/none.yaml"]


@settings(max_examples=12)
@given(data=st.data(), name=st.sampled_from(OPTIONS))
def test_any_option_is_planned_or_refused(data: st.DataObject, name: str, config: Path) -> None:
    path = config / name
    sound = path.read_text()
    package = "# @package _global_\n" if data.draw(st.booleans()) else ""
    path.write_text(package + data.draw(spoilt([documents.load(path)])), encoding="utf-8")
    chosen = ["workload=zipf", "overflow=swap", "tracing=none"]
    try:
        plan = read_or_refused(lambda: expand(None, chosen, config))
    finally:
        path.write_text(sound)
    assert plan is None or plan.experiments


def test_an_option_that_hydra_reads_for_another_is_bounded_too(config: Path) -> None:
    option, other = config / "model" / "mine.yaml", config / "model" / "other.yaml"
    option.write_text("defaults: [other]\n")
    other.write_text("[" * 200_000)
    try:
        with pytest.raises(BadInput, match=r"other\.yaml:1: not valid YAML: nested more than 50"):
            expand(None, ["model=mine"], config)
    finally:
        option.unlink()
        other.unlink()


PIECES = [
    *("seed", "model", "cache.blocks", "a.b", "x/y", "=", "+", "~", "@", ":", ",", "(", ")", "["),
    *("]", "{", "}", "'", '"', "\\", " ", "$", "${seed}", "${", "choice(", "range(", "sort(", "1"),
    *("0", "-1", "1e5", "1e400", "nan", "inf", "glob(", "interval(", "shuffle(", "tag(", "int("),
    *("str(", "json_str(", "extend_list(", "tiny-*", "null", "true", "\n", "\0", "é", "\udcff"),
    *("9" * 5000, "../x", "step=0", "reverse=true"),
]


@given(
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
    | st.lists(st.sampled_from(PIECES), max_size=9).map("".join).map("seed=".__add__)
    | st.text()
)
def test_any_words_of_the_command_line_are_read_or_refused(text: str) -> None:
    read_or_refused(lambda: overrides.parse([text], CONFIG))


class Levels(Overflow):
    level: Any = None
    levels: list[int] | None = None


@pytest.fixture
def two_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two overflow policies of other packages."""
    plug_in(monkeypatch, "overflow", {"one": Levels, "two": Levels})


@pytest.mark.parametrize("value", ["nan", "[1,nan]", "{a:inf}"])
def test_settings_of_another_package_are_plain(value: str, two_packages: None) -> None:
    with pytest.raises(BadInput, match=r"overflow\.level \(.*\) must be text, a finite number"):
        expand(None, ["overflow=one", f"overflow.level={value}"], CONFIG)


def test_settings_of_another_package_may_be_lists(two_packages: None) -> None:
    words = ["overflow=one,two", "overflow.levels=[1,2],[3]"]
    varied = [planned.varied for planned in expand(None, words, CONFIG).experiments]
    assert varied == [
        {"overflow": name, "overflow.levels": levels}
        for name in ("one", "two")
        for levels in ([1, 2], [3])
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["study=../../x"],
        ["study=/etc/passwd"],
        ["study="],
        ["model=../x"],
        ["../x=y"],
        ["model=tiny-opt", "workload=..", "seed=1"],
    ],
)
def test_a_name_that_leads_elsewhere_is_refused_on_the_command_line(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = ["plan", *words, "--config-dir", str(CONFIG), "--write", str(tmp_path / "results")]
    assert cli.main(given) == EXIT_BAD_INPUT
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert not (tmp_path / "results").exists()
