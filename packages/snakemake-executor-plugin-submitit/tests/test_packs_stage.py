"""Site-packages on a node's own disks: once, whole or not at all, and never older ones."""

import json
import os
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from submitit_packs import pilot
from submitit_packs.directory import PackDirectory
from submitit_packs.model import Pack
from submitit_packs.pilot import Allocation
from submitit_packs.stage import main, stage


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    made = tmp_path / "site-packages"
    made.mkdir()
    for number in range(50):
        (made / f"module{number}.py").write_text("WHERE = __file__\n")
    return made


@pytest.fixture
def archive(tmp_path: Path, packages: Path) -> Path:
    made = tmp_path / "packages.tar"
    with tarfile.open(made, "w") as file:
        file.add(packages, ".")
    return made


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    made = tmp_path / "scratch"
    made.mkdir()
    return made


def test_packs_that_arrive_at_once_unpack_it_once(archive, packages, scratch) -> None:
    with ThreadPoolExecutor(8) as pool:
        result = list(pool.map(lambda _: stage(archive, packages, scratch), range(8)))
    (place,) = {staged.directory for staged in result}
    assert sorted(os.listdir(place)) == sorted(os.listdir(packages))
    assert sum("was unpacked in" in staged.words for staged in result) == 1


def test_leftovers_of_a_killed_job_are_not_used(archive, packages, scratch) -> None:
    whole = Path(stage(archive, packages, scratch).directory)
    whole.rename(whole.with_name(f"{whole.name}.partial"))
    (whole.with_name(f"{whole.name}.partial") / "module7.py").unlink()
    again = stage(archive, packages, scratch)
    assert sorted(os.listdir(again.directory)) == sorted(os.listdir(packages))


def test_an_archive_older_than_the_environment_is_not_used(archive, packages, scratch) -> None:
    os.utime(archive, (1, 1))
    staged = stage(archive, packages, scratch)
    assert staged.directory == ""
    assert "is older than" in staged.words


@pytest.mark.parametrize("damage", ["missing", "truncated", "full"])
def test_without_room_or_an_archive_the_shared_environment_serves(
    archive, packages, scratch, damage, monkeypatch
) -> None:
    if damage == "missing":
        archive.unlink()
    elif damage == "truncated":
        archive.write_bytes(archive.read_bytes()[:5000])
    else:
        tar = scratch.parent / "bin" / "tar"
        tar.parent.mkdir()
        tar.write_text("#!/bin/sh\necho 'tar: module3.py: No space left on device' >&2\nexit 2\n")
        tar.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tar.parent}:{os.environ['PATH']}")
    staged = stage(archive, packages, scratch)
    assert staged.directory == ""
    assert f"{packages} is used" in staged.words
    assert not [path for path in scratch.iterdir() if path.is_dir()]
    assert damage != "full" or "No space left on device" in staged.words


def test_a_node_imports_from_its_own_disks(archive, scratch, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PACK_SCRATCH", str(scratch))
    monkeypatch.setenv("PACK_NODE", "x1")
    pack = Pack("pack", "", 1, 1, 1, 600, (), stage=str(archive))
    here = Allocation(PackDirectory(tmp_path), pack, 1, 0.0, [])
    os.utime(archive, (2**31, 2**31))  # not older than the environment of these tests
    (line,) = pilot.staging(here)
    look = f"{sys.executable} -c 'import module7; print(module7.WHERE)'"
    done = subprocess.run(["bash", "-c", f"{line}\n{look}"], capture_output=True, text=True)
    assert done.stdout.startswith(str(scratch)), done.stderr
    record = json.loads((tmp_path / "stage-x1.json").read_text())
    assert record["words"] in done.stderr


def test_a_node_that_cannot_goes_on_and_says_so(scratch, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PACK_SCRATCH", str(scratch))
    assert main([str(tmp_path / "none.tar"), str(tmp_path)]) == 1
    assert "No such file or directory" in capsys.readouterr().err
