"""Runs with KV events where no installed package reads these."""

from pathlib import Path

import pytest

from kvscope.analyse.checklist import checklist, every_oracle
from kvscope.analyse.records import read_records
from kvscope.collect import traces
from kvscope.collect.collector import collect_run
from kvscope.errors import BadInput
from kvscope.runfile import KERNEL_EVENTS

from .kv_access_fixture import write_traced_run
from .report_fixture import Fake, write_experiment


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    write_traced_run(tmp_path, "traced")
    run = tmp_path / "experiments" / "traced"
    (run / KERNEL_EVENTS).touch()
    return run


@pytest.fixture
def untraced(tmp_path: Path) -> Path:
    made: Path = write_experiment(Fake({"cache.blocks": 64}), tmp_path)
    return made


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The oracles of KV events; after it, nothing reads these."""
    reader = traces.installed_reader()
    assert reader
    monkeypatch.setattr(traces, "installed_reader", lambda: None)
    monkeypatch.setattr("kvscope.analyse.checklist.installed_reader", lambda: None)
    return {oracle.name for oracle in reader.oracles}


def test_a_traced_run_is_refused_by_a_sentence_that_names_the_package(
    traced: Path, names: set[str], tmp_path: Path
) -> None:
    with pytest.raises(
        BadInput, match=r"run\.json: the run has KV events, .* install kvscope-kernels"
    ):
        collect_run(traced, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(BadInput, match="install kvscope-kernels"):
        checklist(read_records(traced))


def test_an_untraced_run_is_judged_by_all_other_oracles(untraced: Path, names: set[str]) -> None:
    judged = [found.name for found in checklist(read_records(untraced))]
    assert judged == [oracle.name for oracle in every_oracle()]
    assert len(names) > 20
    assert not names & {*judged}


def test_several_readers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvscope.plugins.names", lambda group: ("one", "other"))
    with pytest.raises(BadInput, match=r"several packages, one, other; keep one"):
        traces.installed_reader()
