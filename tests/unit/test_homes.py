"""A cache or home without room, or that cannot be written: one sentence, with what moves it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvscope.base import homes
from kvscope.base.errors import KvscopeError
from kvscope.base.scratch import scratch_directory
from kvscope.cli.main import main

ROOT = Path(__file__).parents[2]
REASONS = {"full": "No space left on device", "read-only": "Read-only file system"}


@pytest.fixture(params=REASONS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A directory that cannot be written, and why; needs root."""
    directory = tmp_path / "place"
    directory.mkdir()
    option = "ro" if request.param == "read-only" else "size=16k"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", option, "tmpfs", directory]).returncode:
        # Only root may mount; CI is root.
        pytest.skip("a file system cannot be mounted here")
    try:
        if request.param == "full":
            subprocess.run(f"head -c 99999 /dev/zero >'{directory}/x'", shell=True)
        yield directory, REASONS[request.param]
    finally:
        subprocess.run(["umount", "--lazy", directory])


def said(command: list[str], **variables: str) -> str:
    """The sentence that a failing command prints."""
    clean = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "UV_CACHE_DIR")}
    done = subprocess.run(
        command, cwd=ROOT, env=clean | variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("variable", "below"), [("XDG_CACHE_HOME", ""), ("HOME", ".cache/")])
def test_snakemake_names_its_cache(place: tuple[Path, str], variable: str, below: str):
    directory, reason = place
    words = said([sys.executable, "-m", "snakemake", "-n"], **{variable: str(directory)})
    assert words.startswith(
        f"{directory}/{below}snakemake/snakemake/source-cache cannot be written ({reason})"
    )
    assert "XDG_CACHE_HOME" in words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "below", "named"),
    [
        ("UV_CACHE_DIR", "", "UV_CACHE_DIR"),
        ("XDG_CACHE_HOME", "/uv", "UV_CACHE_DIR"),
        ("HOME", "/.cache/uv", "UV_CACHE_DIR"),
        ("TMPDIR", "", "TMPDIR"),
    ],
)
def test_make_env_names_the_directory_and_the_variable(
    place: tuple[Path, str], tmp_path: Path, variable: str, below: str, named: str
):
    directory, reason = place
    variables = {"VENV": str(tmp_path / "venv"), variable: str(directory)}
    words = said(["bash", "workflow/scripts/install-env.sh"], **variables)
    assert words == (
        f"{directory}{below} cannot be written ({reason}): make room, or name another directory in "
        f"{named}."
    )


def test_a_temporary_directory_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc/1")
    with pytest.raises(KvscopeError, match=r"^/proc/1: cannot be written .*TMPDIR"):
        scratch_directory().__enter__()


def test_where_no_temporary_directory_can_be_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/no/such"])
    with pytest.raises(KvscopeError, match=r"No usable temporary .*'/no/such'.*TMPDIR"):
        scratch_directory().__enter__()


@pytest.mark.parametrize(
    ("path", "variables", "mover"),
    [
        ("/home/a/.cache/vllm/x", {}, "VLLM_CACHE_ROOT"),
        ("/c/vllm/x", {"XDG_CACHE_HOME": "/c"}, "VLLM_CACHE_ROOT"),
        ("/v/x", {"VLLM_CACHE_ROOT": "/v"}, "VLLM_CACHE_ROOT"),
        ("/home/a/.triton/cache/x/y.json", {}, "TRITON_CACHE_DIR"),
        ("/n/x.nbi", {"NUMBA_CACHE_DIR": "/n"}, "NUMBA_CACHE_DIR"),
        ("/home/a/.cache/uv/x", {}, "UV_CACHE_DIR"),
        ("/home/a/.cache/other", {}, "XDG_CACHE_HOME"),
        ("/home/a/.nv/ComputeCache/0", {}, "CUDA_CACHE_PATH"),
        ("/home/a/.keras/x", {}, "HOME"),
        ("/home/a/results/x", {}, ""),
        ("/scratch/results/x", {}, ""),
    ],
)
def test_which_variable_moves_a_file(
    path: str, variables: dict[str, str], mover: str, monkeypatch: pytest.MonkeyPatch
):
    for name, _, _ in homes.HOMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/a", **variables}.items():
        monkeypatch.setenv(name, value)
    assert homes.mover_of(path) == mover


def test_a_command_whose_cache_cannot_be_written_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device", "/c/fonts/x")

    monkeypatch.setattr("kvscope.plan.grid.expand", fail)
    assert main(["plan", "study=quickstart"]) == 1
    assert capsys.readouterr().err == (
        "kvscope: /c/fonts/x: No space left on device; XDG_CACHE_HOME names another place for it\n"
    )
