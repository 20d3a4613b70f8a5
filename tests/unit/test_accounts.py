"""collect.json and analyse.json that are damaged or hostile: noticed wherever they are read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.report.check_run import check_run
from kvscope.tables import accounts
from kvscope.tables.accounts import ANALYSED, COLLECTED

from .kv_access_fixture import write_untraced_run
from .mutations import is_a_sentence

ABSENT = object()
# An account, the place of a value in it, and a value that no stage writes there.
DAMAGE = [
    (ANALYSED, ["reasons"], ABSENT),
    (ANALYSED, ["reasons"], [1, {"a": 2}]),
    (ANALYSED, ["reasons"], [{"name": "failed"}]),
    (ANALYSED, ["reasons"], [{"name": "failed", "detail": 3}]),
    (ANALYSED, ["valid"], "yes"),
    (ANALYSED, ["files"], {}),
    (ANALYSED, ["run_sha256"], 7),
    (COLLECTED, ["files"], {}),
    (COLLECTED, ["files", "timeline.parquet"], ABSENT),
    (COLLECTED, ["warnings"], 5),
    (COLLECTED, ["warnings"], [5]),
    (COLLECTED, ["rows"], []),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_untraced_run(tmp_path_factory.mktemp("results"), "served").parents[1]


@pytest.fixture
def run(results: Path) -> Iterator[Path]:
    """A run whose accounts are as they were once a test is over."""
    made = results / "tables" / "served"
    kept = {name: (made / name).read_bytes() for name in (COLLECTED, ANALYSED)}
    yield results / "experiments" / "served"
    for name, content in kept.items():
        (made / name).write_bytes(content)


def put(value: Any, keys: list[str], new: Any) -> None:
    """Replace or remove the value at a place."""
    *above, last = keys
    for key in above:
        value = value[key]
    if new is ABSENT:
        del value[last]
    else:
        value[last] = new


def is_noticed(account: str, keys: list[str], value: Any, run: Path, made: Path) -> None:
    """Write the value at this place of an account; whoever reads it notices."""
    assert accounts.is_current(made, account, run)
    facts = json.loads((made / account).read_text())
    put(facts, keys, value)
    (made / account).write_text(json.dumps(facts))
    assert not accounts.is_current(made, account, run)
    assert [c for c in accounts.complaints(made, account, run) if f"{account}: damaged" in c]


@pytest.mark.parametrize(("account", "keys", "value"), DAMAGE)
def test_damage_is_noticed_wherever_an_account_is_read(
    account: str, keys: list[str], value: Any, run: Path, results: Path
) -> None:
    is_noticed(account, keys, value, run, results / "tables" / "served")


def test_check_tells_of_damage(run: Path, results: Path) -> None:
    path = results / "tables" / "served" / ANALYSED
    path.write_text(json.dumps(json.loads(path.read_text()) | {"reasons": [1]}))
    assert "analyse.json: damaged, key reasons.0" in str(check_run(run))


def test_keys_of_later_versions_are_no_damage(run: Path, results: Path) -> None:
    made = results / "tables" / "served"
    facts = json.loads((made / ANALYSED).read_text()) | {"later": [{"name": "steps_overlap"}]}
    (made / ANALYSED).write_text(json.dumps(facts))
    assert accounts.read(made, ANALYSED, run) == facts


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=9,
)


@given(data=st.data(), account=st.sampled_from([COLLECTED, ANALYSED]))
def test_any_value_anywhere_is_read_or_refused_in_a_sentence(
    data: st.DataObject, account: str, results: Path
) -> None:
    made, run = results / "tables" / "served", results / "experiments" / "served"
    before = (made / account).read_text()
    facts = json.loads(before)
    put(facts, [data.draw(st.sampled_from(sorted(facts)))], data.draw(JSON))
    (made / account).write_text(json.dumps(facts))
    try:
        accounts.read(made, account, run)
    except BadInput as error:
        is_a_sentence(error, made / account)
    finally:
        (made / account).write_text(before)


def test_an_account_of_an_earlier_version_is_stale(run: Path, results: Path) -> None:
    """It lists no metrics of repeats; nothing is damaged, and analysing again is all it takes."""
    made = results / "tables" / "served"
    facts = json.loads((made / ANALYSED).read_text())
    del facts["files"][tables.REPEAT_METRICS.file]
    (made / ANALYSED).write_text(json.dumps(facts))
    with pytest.raises(accounts.StaleResult, match="of an earlier version, without repeat_metrics"):
        accounts.read(made, ANALYSED, run)
