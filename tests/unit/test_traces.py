"""Runs with KV events, and plans of such, where no installed package traces or reads these."""

from pathlib import Path

import pytest

from kvscope.base.errors import BadInput
from kvscope.collect import traces
from kvscope.collect.collector import collect_run
from kvscope.judge.checklist import checklist, every_oracle
from kvscope.judge.records import read_records
from kvscope.plan.grid import expand
from kvscope.plan.layers import SHIPPED_CONFIG
from kvscope.run.events import recorder_of
from kvscope.tables.runfile import KERNEL_EVENTS, read_run, write_run

from .kv_access_fixture import Served, serve, tracing, write_run_of
from .report_fixture import Fake, write_experiment


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    run = write_run_of(serve(), tmp_path, "traced")
    write_run(run, read_run(run) | {"tracing": tracing(Served())})
    (run / KERNEL_EVENTS).touch()
    return run


@pytest.fixture
def untraced(tmp_path: Path) -> Path:
    made: Path = write_experiment(Fake({"cache.blocks": 64}), tmp_path)
    return made


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing reads KV events."""
    monkeypatch.setattr(traces, "installed_reader", lambda: None)
    monkeypatch.setattr("kvscope.judge.checklist.installed_reader", lambda: None)


@pytest.mark.usefixtures("unread")
def test_a_traced_run_is_refused_by_a_sentence_that_names_the_package(
    traced: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        BadInput, match=r"run\.json: the run has KV events, .* install kvscope-kernels"
    ):
        collect_run(traced, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(BadInput, match="install kvscope-kernels"):
        checklist(read_records(traced))


@pytest.mark.usefixtures("unread")
def test_an_untraced_run_is_judged_by_all_other_oracles(untraced: Path) -> None:
    judged = [verdict.name for verdict in checklist(read_records(untraced))]
    assert judged == [oracle.name for oracle in every_oracle()]


def test_several_readers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvscope.base.plugins.names", lambda group: ("one", "other"))
    with pytest.raises(BadInput, match=r"several packages, one, other; keep one"):
        traces.installed_reader()


PLAIN = ("device=cpu", "model=tiny-llama")
FULL = """\
# @package _global_
engine: {attention: instrumented}
tracing: {name: full, buffer_events: 4096}
"""


def test_without_the_package_its_kernels_are_refused_and_all_else_is_planned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tracing").mkdir()
    (tmp_path / "tracing" / "full.yaml").write_text(FULL)

    def refusal(*words: str) -> str:
        with pytest.raises(BadInput) as raised:
            expand(None, [*PLAIN, *words], tmp_path)
        return str(raised.value)

    instrumented = "engine.attention=instrumented"
    monkeypatch.setattr("kvscope.plan.rules.is_installed", lambda: True)
    assert len(expand(None, [*PLAIN, instrumented], tmp_path).experiments) == 1
    monkeypatch.setattr("kvscope.plan.rules.is_installed", lambda: False)
    assert "tracing=full needs the package kvscope-kernels" in refusal("tracing=full")
    assert f"{instrumented} needs the package kvscope-kernels" in refusal(instrumented)
    assert len(expand(None, [*PLAIN], tmp_path).experiments) == 1


def test_a_run_that_is_not_traced_records_no_events(tmp_path: Path) -> None:
    (result,) = expand(None, [*PLAIN], SHIPPED_CONFIG).experiments
    recorder = recorder_of(result.experiment, None, tmp_path)
    with recorder.record():
        pass
    assert recorder.facts(0) == {}
    assert not [*tmp_path.iterdir()]
