"""Files that are cut off, emptied or cannot be written: one sentence, and nothing is lost."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from submitit_packs import controller as controllers
from submitit_packs.directory import ATTEMPT, JOB, PLAN, PackDirectory, State
from submitit_packs.ledger import LEDGER, Ledger
from submitit_packs.model import Member, Pack
from submitit_packs.overview import overview
from test_packs_controller import Campaign


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    for name in ("GRACE_S", "VANISHED_S", "FULL_S"):
        monkeypatch.setattr(controllers, name, 0.0)


@pytest.fixture
def campaign(tmp_path):
    campaign = Campaign(tmp_path / "packs")
    yield campaign
    campaign.controller.close()


def pack_of(campaign: Campaign) -> PackDirectory:
    (path,) = campaign.root.glob("pack-*")
    return PackDirectory(path)


DAMAGES = [b"", b"{", b"[]", b"{}", b"3", b"null", b'"ok"', b"\xff\xfe\0", b'{"state": "gone"}']


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damaged_file_of_a_pack_is_as_if_absent(tmp_path, damage):
    directory = PackDirectory(tmp_path)
    for name in (PLAN, JOB, ATTEMPT, "m.run", "m.rc"):
        (tmp_path / name).write_bytes(damage)
    assert directory.plan() is None
    assert directory.job() is None
    assert directory.attempt().number == 0
    assert directory.start("m") is None
    assert directory.result("m") is None


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_member_with_a_damaged_result_runs_again(campaign, damage):
    campaign.cycle()
    (job,) = campaign.system.live()
    campaign.system.run(job)
    (pack_of(campaign).path / "m2.rc").write_bytes(damage)
    campaign.cycle()
    assert campaign.ended.keys() == {"m0", "m1", "m3", "m4", "m5"}
    assert overview(campaign.root).members["m2"].state == "running"
    campaign.system.end(job)
    campaign.finish()
    assert campaign.system.began == {f"m{i}": 2 if i == 2 else 1 for i in range(6)}


@pytest.mark.parametrize("damage", ["absent", "empty", "cut", "noise"])
def test_a_damaged_ledger_is_mended_from_the_plans(campaign, damage):
    campaign.cycle()
    (job,) = campaign.system.live()
    campaign.system.run(job, {f"m{i}": None for i in range(1, 6)})
    campaign.cycle()  # m0 has ended
    path = campaign.root / LEDGER
    if damage == "absent":
        path.unlink()
    else:
        whole = path.read_bytes()
        path.write_bytes({"empty": b"", "cut": whole[:20], "noise": b"\xff\n[]\n{}\n3\n"}[damage])
    before = {key: m.state for key, m in overview(campaign.root).members.items()}
    assert before == {f"m{i}": "running" if i else "ok" for i in range(6)}
    campaign.restart()
    assert sorted(campaign.attached) == [f"m{i}" for i in range(1, 6)]
    (message,) = [line for line in campaign.said if "damaged" in line]
    assert message.endswith("was damaged: 1 packs are found by their plans")
    assert len(campaign.system.jobs) == 1  # nothing is submitted a second time
    campaign.restart()
    assert len([line for line in campaign.said if "damaged" in line]) == 1  # it is mended
    campaign.system.end(job)
    campaign.finish()
    assert campaign.system.began == {f"m{i}": 2 if i else 1 for i in range(6)}


def test_a_closed_pack_is_not_found_again(campaign):
    campaign.cycle()
    (job,) = campaign.system.live()
    campaign.system.run(job, {"m0": None})
    campaign.system.end(job)
    campaign.cycle()  # m0 is in a second pack now
    (campaign.root / LEDGER).unlink()
    ledger = Ledger(campaign.root)
    (second,) = {job.pack.id for job in campaign.system.jobs.values() if len(job.pack.members) == 1}
    assert {key: place.pack for key, place in ledger.places.items()} == {"m0": second}


def test_a_pack_whose_plan_is_damaged_is_waited_for(campaign):
    campaign.cycle()
    (job,) = campaign.system.live()
    campaign.system.run(job, {"m0": None, "m1": State.KILLED})
    (pack_of(campaign).path / PLAN).write_bytes(b"")
    campaign.restart()
    campaign.cycle()
    assert any("its plan is damaged" in line for line in campaign.said)
    assert len(campaign.system.jobs) == 1
    assert campaign.ended.keys() == {"m2", "m3", "m4", "m5"}
    campaign.system.end(job)
    campaign.finish()
    assert campaign.system.began == {f"m{i}": 2 if i < 2 else 1 for i in range(6)}


# ---------------------------------------------------------------------- a full disk


@pytest.fixture
def disk(tmp_path):
    """A file system of 256 KiB, with a way to fill it."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(path)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a file system of its own needs the right to mount")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        file.write(b"x" * 2**20) and file.write(b"x")  # as much as there is, and one more
    return ballast


def test_a_controller_waits_for_room(disk):
    campaign = Campaign(disk / "packs")
    ballast = fill(disk)
    for _ in range(5):
        campaign.cycle()
    assert campaign.system.jobs == {}
    assert any("No space left on device" in line for line in campaign.said)
    assert len(campaign.said) < 4
    ballast.unlink()
    campaign.cycle()
    (job,) = campaign.system.live()
    campaign.system.run(job)
    ballast = fill(disk)
    campaign.cycle()  # the ends are passed on, and cannot be noted
    assert len(campaign.ended) == 6
    ballast.unlink()
    campaign.cycle()
    campaign.restart()
    assert campaign.system.began.total() == 6
    campaign.controller.close()


def test_a_members_end_waits_for_room(disk):
    directory = PackDirectory(disk / "pack-1")
    command = f"touch {disk}/began; while [ ! -e {disk.parent}/go ]; do sleep 0.1; done"
    member = Member("m", "m", command, str(disk), 1, 100)
    directory.write_plan(Pack("pack-1", "q", 1, 1, 1, 600, (member,), margin_s=5, poll_s=0.3))
    directory.begin_attempt()
    process = subprocess.Popen(
        [sys.executable, "-m", "submitit_packs.member", directory.path, "m", "1", "9e9"],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = time.monotonic() + 60
    while not (disk / "began").exists() and time.monotonic() < limit:
        time.sleep(0.1)
    ballast = fill(disk)
    (disk.parent / "go").touch()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2.0)
    assert list(directory.keys()) == []  # neither a result nor a piece of one
    ballast.unlink()
    _, output = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "")
    result = directory.result("m")
    assert result is not None
    assert result.state == State.OK
