"""Finding nsys, asking it for a real capture, and unpacking it where it can and cannot be had."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kvscope.base.errors import BadInput
from kvscope.run import profiler
from kvscope.run.profiler import Nsys, find_nsys, verify_capture

INSTALL = Path(__file__).parents[2] / "workflow" / "scripts" / "install-nsys.sh"


def program(path: Path, text: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake_nsys(path: Path, version: str) -> Path:
    return program(path, f"echo NVIDIA Nsight Systems version {version}")


def ends(pid: int, within_s: float = 300.0) -> bool:
    """Whether a process ends; a zombie has ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place without any nsys: no checkout, nothing named, nothing on PATH."""
    monkeypatch.delenv("KVSCOPE_NSYS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(profiler, "CHECKOUT", tmp_path / "checkout")
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestFinding:
    def test_no_nsys_is_found_where_there_is_none(self, bare: Path):
        assert find_nsys() is None

    def test_the_named_one_goes_before_the_checkouts_and_that_before_the_one_on_path(
        self, bare: Path, monkeypatch: pytest.MonkeyPatch
    ):
        on_path = fake_nsys(bare / "bin" / "nsys", "1.1.1")
        assert find_nsys() == Nsys(on_path, "1.1.1")
        private = fake_nsys(bare / "checkout" / ".nsys" / "bin" / "nsys", "2.2.2")
        assert find_nsys() == Nsys(private, "2.2.2")
        named = fake_nsys(bare / "elsewhere" / "nsys-3", "3.3.3-abc")
        monkeypatch.setenv("KVSCOPE_NSYS", str(named))
        assert find_nsys() == Nsys(named, "3.3.3-abc")

    def test_an_nsys_that_does_not_run_is_passed_over(self, bare: Path):
        program(bare / "checkout" / ".nsys" / "bin" / "nsys", "exit 127")
        on_path = fake_nsys(bare / "bin" / "nsys", "1.1.1")
        assert find_nsys() == Nsys(on_path, "1.1.1")

    @pytest.mark.parametrize("content", [None, "exit 1", "echo hello"])
    def test_a_named_nsys_that_does_not_run_is_an_error_that_names_it(
        self, bare: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
    ):
        named = bare / "not-nsys"
        if content:
            program(named, content)
        monkeypatch.setenv("KVSCOPE_NSYS", str(named))
        with pytest.raises(BadInput, match=r"KVSCOPE_NSYS: '.*not-nsys' is not an nsys"):
            find_nsys()


@pytest.mark.nsys
class TestRealCapture:
    def test_holds_the_ranges(self, nsys: Nsys):
        assert verify_capture(nsys) is None

    def test_works_for_a_caller_with_another_directory_for_temporary_files(
        self, nsys: Nsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        assert verify_capture(nsys) is None

    def test_ranges_that_are_not_recorded_are_missed(
        self, nsys: Nsys, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(profiler, "PROBE", "print('no range')")
        assert verify_capture(nsys) == "nsys recorded 0 of 3 NVTX ranges"

    def test_a_profiler_that_leaves_no_report_is_not_believed(self, tmp_path: Path):
        silent = Nsys(program(tmp_path / "nsys", "echo Importer not found"), "0")
        assert verify_capture(silent) == "nsys profile left no nsys-rep file: Importer not found"

    def test_a_profiler_that_hangs_is_killed_with_its_children(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(profiler, "PROBE_LIMIT_S", 2.0)
        pid_file = tmp_path / "agent.pid"
        hanging = program(tmp_path / "nsys", f"setsid sleep 3000 & echo $! > {pid_file}; wait")
        complaint = verify_capture(Nsys(hanging, "0"))
        assert complaint is not None
        assert "was killed" in complaint
        assert ends(int(pid_file.read_text()))


class TestUnpacking:
    def run(self, destination: Path, path: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/bash", str(INSTALL), str(destination)],
            env={"PATH": path},
            capture_output=True,
            text=True,
        )

    @pytest.fixture
    def without_apt(self, tmp_path: Path) -> Path:
        """A directory for PATH that holds the usual tools, but no apt-get."""
        bin_directory = tmp_path / "bin"
        bin_directory.mkdir()
        for tool in ("uname", "cat", "mktemp", "mkdir", "rm", "id"):
            result = shutil.which(tool)
            assert result is not None
            (bin_directory / tool).symlink_to(result)
        return bin_directory

    def test_without_apt_it_says_so_in_one_sentence_and_fails(
        self, tmp_path: Path, without_apt: Path
    ):
        done = self.run(tmp_path / "nsys", str(without_apt))
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "cannot be unpacked here (" in done.stderr
        assert "KVSCOPE_NSYS" in done.stderr
        assert not (tmp_path / "nsys").exists()

    def test_nothing_is_downloaded_for_a_path_from_which_nsys_does_not_start(self, tmp_path: Path):
        place = tmp_path / "my work" / "nsys"
        done = self.run(place, os.environ["PATH"])
        assert done.returncode == 1
        assert f"nsys does not start from a path with a space, '{place}'" in done.stderr
        assert done.stdout == ""
        assert not place.exists()

    def test_without_apt_an_nsys_on_path_will_do(self, tmp_path: Path, without_apt: Path):
        fake_nsys(without_apt / "nsys", "2025.1.1")
        done = self.run(tmp_path / "nsys", str(without_apt))
        assert done.returncode == 0
        assert f"{without_apt / 'nsys'} is used" in done.stdout

    def test_an_installation_that_runs_is_left_alone(self, tmp_path: Path, without_apt: Path):
        fake = fake_nsys(tmp_path / "nsys" / "bin" / "nsys", "9.9.9")
        done = self.run(tmp_path / "nsys", str(without_apt))
        assert done.returncode == 0
        assert "9.9.9" in done.stdout
        assert fake.exists()

    @pytest.mark.nsys
    def test_no_link_of_the_unpacked_one_leads_nowhere(self, nsys: Nsys):
        root = nsys.path.parents[1]
        # CI installs its own. Another installation may have links that its owner knows of.
        if root.name != ".nsys":
            pytest.skip("the nsys in use was installed by someone else")
        assert [p for p in root.rglob("*") if p.is_symlink() and not p.exists()] == []

    @pytest.mark.nsys
    def test_reports_of_nsys_stats_are_found(self, nsys: Nsys, tmp_path: Path):
        env = os.environ | {"TMPDIR": str(tmp_path)}
        report = tmp_path / "a.nsys-rep"
        command = [str(nsys.path), "profile", "--trace=nvtx", *profiler.NO_PERF_EVENTS]
        # On a busy machine one start in some hundred fails: `verify_capture` tries twice as well.
        for _ in range(2):
            done = subprocess.run(
                [*command, f"--output={report}", sys.executable, "-c", profiler.PROBE],
                env=env,
                cwd=tmp_path,
                capture_output=True,
                text=True,
            )
            if report.exists():
                break
        assert report.exists(), done.stdout + done.stderr
        done = subprocess.run(
            [str(nsys.path), "stats", "--report=nvtx_sum", "--format=csv", str(report)],
            env=env,
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        assert "kvscope:probe" in done.stdout
