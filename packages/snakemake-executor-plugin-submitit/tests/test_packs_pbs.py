"""Packs on PBS: Polaris's queues and messages, jobs that are processes of this machine."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fake_pbs.cluster import FakePBS, wait_for
from submitit_packs import sites
from submitit_packs.controller import Controller, Outcome
from submitit_packs.model import Member
from submitit_packs.planner import Settings
from submitit_packs.schedulers import of

pytestmark = pytest.mark.slow

SITE = dataclasses.replace(sites.load("polaris"), affinity="none", interfaces=("lo",))
SETTINGS = Settings(
    queues=("preemptable",),
    length_s=400,
    startup_s=30,
    poll_s=0.5,
    heartbeat_s=3,
    setup=("source site.sh",),  # in the directory of the submission, on every node
)
PATIENCE_S = 240.0


@pytest.fixture
def pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePBS]:
    with FakePBS(tmp_path / "pbs", nodes=4) as pbs:
        monkeypatch.setenv("PATH", pbs.path)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "site.sh").write_text("export SITE=here\n")
        yield pbs


def run(
    packs: Controller, members: list[Member], meanwhile: Callable[[], object] = lambda: None
) -> dict[str, Outcome]:
    """How each member ended, once; `meanwhile` is called between any two cycles."""
    packs.add(members)
    ended: dict[str, Outcome] = {}
    limit = time.monotonic() + PATIENCE_S
    while len(ended) < len(members):
        assert time.monotonic() < limit
        outcomes = packs.cycle()
        assert not {outcome.key for outcome in outcomes} & ended.keys()
        ended |= {outcome.key: outcome for outcome in outcomes}
        packs.reported(outcomes)
        meanwhile()
        time.sleep(0.5)
    packs.close()
    return ended


@pytest.mark.parametrize("launcher", ["mpiexec", "pbs_tmrsh"])
def test_members_run_on_all_nodes_of_a_pack_each_with_a_gpu(
    pbs: FakePBS, tmp_path: Path, launcher: str
) -> None:
    words = "$FAKE_PBS_NODE $CUDA_VISIBLE_DEVICES $PACK_NODE $SITE"
    command = f"echo {words} >>{tmp_path}/m; sleep 2"
    members = [
        Member(f"m{i}", f"member {i}", "exit 3" if i == 7 else command, str(tmp_path), 300, 360)
        for i in range(8)
    ]
    site = dataclasses.replace(SITE, launcher=launcher)
    ended = run(Controller(tmp_path / "packs", site, SETTINGS, of("pbs", "physics")), members)
    assert {key for key, outcome in ended.items() if not outcome.ok} == {"m7"}
    assert "exit code 3" in ended["m7"].words
    places = (tmp_path / "m").read_text().splitlines()
    assert len(places) == len(set(places)) == 7
    assert {place.split()[0] for place in places} == set(pbs.hosts("1"))
    assert all(place.split()[2:] == [place.split()[0], "here"] for place in places)
    assert len(pbs.hosts("1")) == 2
    assert pbs.calls("qsub") == 1


def test_an_outage_and_a_preemption_cost_only_what_was_running(
    pbs: FakePBS, tmp_path: Path
) -> None:
    def member(number: int, nap_s: float) -> Member:
        command = (
            f"echo {number} >>{tmp_path}/began; sleep {nap_s}; echo {number} >>{tmp_path}/done"
        )
        return Member(f"m{number}", f"member {number}", command, str(tmp_path), 300, 360)

    def lines(name: str) -> list[str]:
        path = tmp_path / name
        return sorted(path.read_text().split()) if path.exists() else []

    def events() -> Iterator[None]:
        while len(lines("began")) < 4:
            yield
        pbs.stop()
        while lines("done") != ["0", "1"]:
            yield
        pbs.start()
        pbs.preempt("1")
        while True:
            yield

    members = [member(0, 1), member(1, 1), member(2, 15), member(3, 15)]
    happening = events()
    packs = Controller(tmp_path / "packs", SITE, SETTINGS, of("pbs", "physics"))
    ended = run(packs, members, lambda: next(happening))
    assert all(outcome.ok for outcome in ended.values())
    assert lines("done") == ["0", "1", "2", "3"]
    assert lines("began") == ["0", "1", "2", "2", "3", "3"]
    assert pbs.job("1")["run_count"] == "2"
    assert pbs.calls("qsub") == 0  # since the server's second start
    wait_for(lambda: pbs.processes() == 0)
