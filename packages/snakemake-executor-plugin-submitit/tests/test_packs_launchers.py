"""Commands on the nodes of a job, and the reaction if the nodes are not as planned."""

import os
import subprocess
from pathlib import Path

import pytest

from submitit_packs import launchers, pilot
from submitit_packs.directory import PackDirectory, Start
from submitit_packs.errors import BadSettings
from submitit_packs.member import host
from submitit_packs.model import Pack
from submitit_packs.pilot import Allocation


def program(directory: Path, name: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of PBS with two nodes that have PBS's own programs."""
    for name in ("pbs_tmrsh", "mpiexec"):
        program(tmp_path / "pbs", name)
    nodes = tmp_path / "nodes"
    nodes.write_text("x3001c0s1b0n0\nx3001c0s1b0n0\nx3001c0s1b1n0.hsn\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'pbs'}:/usr/bin:/bin")
    monkeypatch.setenv("PBS_NODEFILE", str(nodes))
    for name in ("PACK_NODE", "SLURMD_NODENAME", "PMI_RANK", "PBS_NODENUM"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


class TestLauncher:
    def test_mpiexec_of_pbs_starts_nothing_itself(self, job: Path) -> None:
        name, words = launchers.usable("mpiexec", 2)
        assert name == "pbs_tmrsh"
        assert words.startswith("there is no mpiexec in PATH on ")

    def test_a_real_mpiexec_is_used_wherever_it_is_in_path(
        self, job: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = program(job / "mpi", "mpiexec")
        monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{job / 'mpi'}")
        assert launchers.usable("mpiexec", 2) == ("mpiexec", "")
        assert f"exec {real} -n 2 --ppn 1" in launchers.launch("mpiexec", 2, "true")

    def test_a_single_node_needs_no_mpiexec(self, job: Path) -> None:
        assert launchers.usable("mpiexec", 1)[0] == "fork"

    def test_without_any_it_is_one_sentence(
        self, job: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("PBS_NODEFILE")
        with pytest.raises(BadSettings, match="load its module in the setup lines, or choose"):
            launchers.usable("mpiexec", 2)

    def test_a_command_runs_in_the_present_directory(
        self, job: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = job / "a b"
        place.mkdir()
        monkeypatch.chdir(place)
        text = launchers.launch("fork", 1, "pwd")
        done = subprocess.run(["bash", "-c", text], cwd="/", capture_output=True, text=True)
        assert done.stdout.strip() == str(place)


class TestNode:
    def test_is_the_one_of_its_own_name(self, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        names = os.uname()
        monkeypatch.setattr(
            os, "uname", lambda: type(names)((names[0], "x3001c0s1b1n0", *names[2:]))
        )
        monkeypatch.setenv("PMI_RANK", "0")
        assert host() == "x3001c0s1b1n0.hsn"

    def test_is_the_one_of_its_rank_where_nodes_share_a_name(
        self, job: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PBS_NODENUM", "0")
        assert host() == "x3001c0s1b0n0"
        monkeypatch.setenv("PMI_RANK", "1")
        assert host() == "x3001c0s1b1n0.hsn"

    def test_has_its_own_name_without_a_batch_system(
        self, job: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PBS_NODEFILE", str(job / "none"))
        assert host() == os.uname().nodename


class TestSlots:
    def test_are_bound_to_cpus_that_are_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        polaris = "list:24-31,56-63:16-23,48-55:8-15,40-47:0-7,32-39"
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
        assert pilot.usable_affinity(polaris) == (polaris, "")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
        affinity, words = pilot.usable_affinity(polaris)
        assert affinity == "none"
        assert "has no CPU 32, so that slots are not bound" in words
        assert pilot.usable_affinity("block") == ("block", "")


def test_workers_that_all_die_end_the_pack_with_their_last_words(tmp_path: Path) -> None:
    directory = PackDirectory(tmp_path)
    pack = Pack("pack", "", 1, 1, 1, 600, ())
    here = Allocation(directory, pack, attempt=2, end_s=0.0, members=[])
    said = tmp_path / "parsl-2" / "000" / "submit_scripts" / "block.err"
    said.parent.mkdir(parents=True)
    said.write_text("Traceback\nAssertionError: more workers than cores\n")
    directory.write_start("m", Start("n", "0", (), 0.0, attempt=1))  # of the attempt before
    with pytest.raises(RuntimeError, match=r"no worker began within \d+ s: AssertionError: more"):
        pilot._check_workers(here)
    directory.write_start("m", Start("n", "0", (), 0.0, attempt=2))
    pilot._check_workers(here)
