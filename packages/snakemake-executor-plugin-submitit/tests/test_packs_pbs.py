"""Packs on PBS: Polaris's queues and messages, jobs that are processes of this machine."""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_pbs.cluster import FakePBS
from submitit_packs import sites
from submitit_packs.controller import Controller, Outcome
from submitit_packs.model import Member
from submitit_packs.planner import Settings
from submitit_packs.schedulers import of

pytestmark = pytest.mark.slow

SITE = dataclasses.replace(sites.load("polaris"), affinity="none", interfaces=("lo",))
SETTINGS = Settings(queues=("preemptable",), length_s=400, startup_s=30, poll_s=0.5, heartbeat_s=3)
PATIENCE_S = 240.0


@pytest.fixture
def pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePBS]:
    with FakePBS(tmp_path / "pbs", nodes=4) as pbs:
        monkeypatch.setenv("PATH", pbs.path)
        yield pbs


@pytest.mark.parametrize("launcher", ["mpiexec", "pbs_tmrsh"])
def test_members_run_on_all_nodes_of_a_pack_each_with_a_gpu(
    pbs: FakePBS, tmp_path: Path, launcher: str
) -> None:
    command = f"echo $FAKE_PBS_NODE $CUDA_VISIBLE_DEVICES >>{tmp_path}/m; sleep 2"
    members = [
        Member(f"m{i}", f"member {i}", "exit 3" if i == 7 else command, str(tmp_path), 300, 360)
        for i in range(8)
    ]
    said: list[str] = []
    site = dataclasses.replace(SITE, launcher=launcher)
    packs = Controller(tmp_path / "packs", site, SETTINGS, of("pbs", "physics"), said.append)
    packs.add(members)
    ended: dict[str, Outcome] = {}
    limit = time.monotonic() + PATIENCE_S
    while len(ended) < len(members):
        assert time.monotonic() < limit, said
        outcomes = packs.cycle()
        assert not {o.key for o in outcomes} & ended.keys()
        ended |= {outcome.key: outcome for outcome in outcomes}
        packs.reported(outcomes)
        time.sleep(0.5)
    packs.close()
    assert {key for key, outcome in ended.items() if not outcome.ok} == {"m7"}
    assert "exit code 3" in ended["m7"].words
    places = (tmp_path / "m").read_text().splitlines()
    assert len(places) == len(set(places)) == 7
    assert {place.split()[0] for place in places} == set(pbs.hosts("1"))
    assert len(pbs.hosts("1")) == 2
    assert pbs.calls("qsub") == 1
