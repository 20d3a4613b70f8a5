"""A device, a workload, a policy and an action of another package, each one new file."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from kvscope.base import plugins
from kvscope.base.errors import BadInput
from kvscope.plan import actions, registry, schema
from kvscope.plan.experiment import Experiment, dump, load
from kvscope.plan.grid import expand
from kvscope.plan.resources import resources
from kvscope.plan.traits import key_title, setting_words
from kvscope.plan.work import expected_work
from kvscope.report.data import StudyData
from kvscope.report.figures import registry as figures
from kvscope.run.environment import measured_environment
from kvscope.workload import requests

ROOT = Path(__file__).parents[2]
CONFIG, TOYS = ROOT / "config", ROOT / "tests" / "toys"
WORDS = ("device=toy", "workload=pairs", "overflow=stash", "overflow.host_blocks=9")
CACHES = (
    registry.find_registered,
    registry.load_all,
    registry.label,
    actions.action,
    figures.figures,
    plugins.names,
    plugins.find,
)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package's directory is where installed packages are."""
    monkeypatch.syspath_prepend(str(TOYS))
    for cached in CACHES:
        cached.cache_clear()
    yield
    for cached in CACHES:
        cached.cache_clear()


def experiment(*overrides: str) -> Experiment:
    return expand(None, [*WORDS, *overrides], CONFIG).experiments[0].experiment


def test_they_are_planned_with_their_defaults(tmp_path: Path) -> None:
    planned = experiment("overflow.times=3")
    assert planned.slug == "tiny-llama-toy-pairs8-mixed-stash-b256x32"
    assert (planned.device.reading_ns, planned.overflow.times) == (1000, 3)  # type: ignore[attr-defined]
    assert planned.host_blocks == 9
    path = tmp_path / "experiment.yaml"
    path.write_text(dump(planned))
    assert load(path) == planned
    assert [len(r.prompt_token_ids) for r in requests.build(planned)[:2]] == [26, 106]
    assert expected_work(planned).requests == resources(planned)["threads"] * 8
    assert measured_environment(planned)["TOY"] == "1"


# Settings, and what the sentence must hold.
REFUSED = [
    (["workload.short_tokens=161"], "workload.short_tokens (161) must not exceed workload.long_"),
    (["workload.long_tokens=2000"], "workload.long_tokens (2000) must not exceed engine.max_model"),
    (["workload.long=1"], "workload.long (the command line) is not a key of workload=pairs (did"),
    (["workload.arrival=trace"], "workload=pairs has no arrival times"),
    (["overflow.times=0"], "overflow.times is 0 (the command line) but must be at least 1"),
    (["overflow.host_gib=1", "overflow.host_blocks=1"], "exactly one of overflow.host_blocks (1)"),
    (["engine.attention=paged"], "engine.attention (paged) must be vllm on device toy"),
    (["cache.layout=by_block"], "cache.layout (by_block) must be one of by_layer"),
    (
        ["device.reading_ns=fast"],
        "device.reading_ns is 'fast' (the command line) but must be a",
    ),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("overrides", "sentence"), REFUSED, ids=str)
def test_impossible_settings_are_refused(overrides: list[str], sentence: str) -> None:
    words = {word.partition("=")[0]: word for word in (*WORDS, *overrides)}
    with pytest.raises(BadInput) as error:
        expand(None, list(words.values()), CONFIG)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_their_keys_have_the_labels_that_they_declare() -> None:
    assert key_title("device.reading_ns") == "a reading of the clock (ns)"
    assert key_title("workload.short_tokens") == "short requests (tokens)"
    assert setting_words("overflow.times", 3) == "3 stashed"


def test_an_action_declares_everything_that_others_need() -> None:
    names = pd.Series(["stash", "recompute", "swap", None])
    assert actions.copies_blocks(names).tolist() == [True, False, True, False]
    assert actions.keeps_tokens(names).tolist() == [True, False, True, False]
    with pytest.raises(BadInput, match=r"'burn', an action that no installed package registers"):
        actions.copies_blocks(pd.Series(["burn"]))


def test_an_option_that_cannot_be_loaded_is_refused_only_if_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken-1.dist-info").mkdir()
    points = "[kvscope.workload]\nbroken = nowhere:None\ntext = os:sep\n"
    (tmp_path / "broken-1.dist-info" / "entry_points.txt").write_text(points)
    (tmp_path / "broken-1.dist-info" / "METADATA").write_text("Name: broken\nVersion: 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.find_registered.cache_clear()
    registry.load_all.cache_clear()
    experiment()
    for name, sentence in (
        ("broken", "cannot be loaded from broken 1, nowhere"),
        ("text", "a subclass of"),
    ):
        with pytest.raises(BadInput, match=sentence):
            expand(None, [f"workload={name}"], CONFIG)


def test_its_figure_is_taken_in_studies_suggested_to_editors_and_placed_on_the_page(
    tmp_path: Path,
) -> None:
    (tmp_path / "study").mkdir()
    text = "title: T\nfigures: [{tokens_a_request: {x: seed}}]\ngrids: [{name: a}]"
    (tmp_path / "study" / "mine.yaml").write_text(text)
    assert list(expand("mine", [], tmp_path).figures) == ["tokens_a_request"]
    assert '"tokens_a_request"' in schema.text()
    assert '"tokens_a_request"' not in schema.text(shipped=True)
    result = list(figures.figures())
    at = result.index("throughput")
    assert result[at : at + 3] == ["throughput", "tokens_a_request", "pareto"]


def test_a_figure_that_fails_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert figures.draw_figure(StudyData("s", "", "", (), ()), "tokens_a_request") is None
    monkeypatch.delattr(StudyData, "complete")
    with pytest.raises(BadInput, match=r"figure tokens_a_request of toys 0\.1, toy_figure:FIGURE"):
        figures.draw_figure(StudyData("s", "", "", (), ()), "tokens_a_request")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", registry.KINDS)
def test_planning_and_supervising_load_no_vllm(kind: str) -> None:
    program = (
        "import sys; from kvscope.plan import registry; import kvscope.run.campaign;"
        f"classes = registry.load_all({kind!r}).values();"
        "from pkgutil import resolve_name;"
        "[resolve_name(c.platform) for c in classes if hasattr(c, 'platform')];"
        "print(len(classes) > 1, {'torch', 'vllm'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "set()"], done.stderr
