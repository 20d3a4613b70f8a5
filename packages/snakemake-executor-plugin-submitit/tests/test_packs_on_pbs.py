"""Packs on PBS: the stand-in of submitit-pbs, with Polaris's queues, messages and exit codes."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from submitit_packs import controller as controllers
from submitit_packs import schedulers
from submitit_packs.controller import Controller, Outcome
from submitit_packs.model import Member
from submitit_packs.overview import overview
from submitit_packs.planner import Settings
from submitit_packs.queue import Queue
from submitit_packs.sites import Site

sys.path.append(str(Path(__file__).parents[2] / "submitit-pbs" / "tests"))
fake_pbs = pytest.importorskip("fake_pbs.cluster")

pytestmark = pytest.mark.slow
PATIENCE_S = 240.0
SITE = Site(
    "fake",
    "pbs",
    gpus_per_node=2,
    launcher="pbs_tmrsh",
    interfaces=("lo",),
    queues=(Queue("demand", 1, 3), Queue("prod", 1, 3)),
)
OPTIONS = {"pbs_filesystems": "home", "pbs_chunk": "system=polaris"}


@pytest.fixture
def pbs(tmp_path, monkeypatch) -> Iterator[None]:
    with fake_pbs.FakePBS(tmp_path / "pbs", nodes=3) as cluster:
        monkeypatch.setenv("PATH", cluster.path)
        monkeypatch.setattr(controllers, "GRACE_S", 1.0)
        yield cluster


def members(root: Path, count: int, nap_s: float) -> list[Member]:
    command = f"echo $PACK_NODE $CUDA_VISIBLE_DEVICES >> began.$PACK_MEMBER; sleep {nap_s}"
    return [Member(f"m{i}", f"m{i}", command, str(root), nap_s, 120) for i in range(count)]


def run(controller: Controller, count: int, ended: dict[str, Outcome], until=None) -> None:
    limit = time.monotonic() + PATIENCE_S
    while len(ended) < count and not (until and until()):
        assert time.monotonic() < limit, ended
        outcomes = controller.cycle()
        ended.update((outcome.key, outcome) for outcome in outcomes)
        controller.reported(outcomes)
        time.sleep(0.5)


def begin(root: Path, todo: list[Member], said: list[str], **changes) -> Controller:
    settings = Settings(
        **{"queues": ("demand",), "length_s": 40, "startup_s": 20, "margin_s": 10, "poll_s": 0.5}
        | {"heartbeat_s": 2, "min_fill": 0, "options": OPTIONS, **changes}
    )
    found = Controller(root / "packs", SITE, settings, schedulers.of("pbs", "physics"), said.append)
    found.add(todo)
    return found


def test_members_run_on_several_nodes_and_a_restart_finds_them(pbs, tmp_path):
    todo, said, ended = members(tmp_path, 8, 4), [], {}
    root = tmp_path / "packs"

    def are_running() -> bool:
        return any(m.state == "running" for m in overview(root).members.values())

    first = begin(tmp_path, todo, said, length_s=32)
    run(first, 8, ended, are_running)
    first.close()
    second = begin(tmp_path, [m for m in todo if m.key not in ended], said, length_s=32)
    run(second, 8, ended)
    second.close()
    assert {key for key, outcome in ended.items() if outcome.ok} == {m.key for m in todo}, ended
    places = [p.read_text().split() for p in tmp_path.glob("began.*")]
    assert all(len(words) == 2 for words in places), "a member ran twice"
    assert len({node for node, _ in places}) > 1
    assert {gpu for _, gpu in places} == {"0", "1"}


def test_qdel_by_hand(pbs, tmp_path):
    todo, said, ended = members(tmp_path, 4, 100), [], {}
    controller = begin(tmp_path, todo, said)
    run(controller, 4, ended, lambda: list(tmp_path.glob("began.*")))
    (job,) = {flight.job_id for flight in controller.flights.values()}
    os.system(f"qdel {job}")
    run(controller, 4, ended)
    controller.close()
    assert all("deleted by" in outcome.words for outcome in ended.values()), ended


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"queues": ("prod",)}, "Job violates queue and/or server resource limits"),
        ({"options": {}}, "Resource: filesystems is required to be set."),
    ],
)
def test_what_pbs_refuses_is_its_sentence(pbs, tmp_path, changes, sentence):
    todo, said, ended = members(tmp_path, 2, 1), [], {}
    controller = begin(tmp_path, todo, said, **changes)
    run(controller, 2, ended)
    controller.close()
    assert {sentence in outcome.words for outcome in ended.values()} == {True}, ended
