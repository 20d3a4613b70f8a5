"""`kvscope submit --dry-run` prints what `kvscope submit` submits, byte for byte."""

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fake_pbs.cluster import FakePBS
from kvscope.cli.main import main
from kvscope_cluster import submission
from submitit_packs.controller import Controller

pytestmark = pytest.mark.slow

STUDY = ("model=tiny-llama", "device=modeled", "seed=range(0,30)")
PACK = re.compile(r"pack-[0-9a-f]{10}")  # an id that is drawn when it is submitted
SETUP = ("--setup", "export A='b c'", "--setup", "true")
SLURM_SITE = """
name: small
scheduler: slurm
gpus_per_node: 1
queues: [{name: main, nodes: [1, 2], max_jobs: 9}]
"""
SBATCH = """#!/bin/sh
cat "$1" >"{place}/submitted-$$"
echo Submitted batch job $$
"""

Submitted = Callable[[], set[str]]


@contextmanager
def fake_pbs(place: Path, patch: pytest.MonkeyPatch) -> Iterator[Submitted]:
    with FakePBS(place / "pbs", nodes=1) as pbs:
        patch.setenv("PATH", pbs.path)
        yield lambda: {p.read_text() for p in place.glob("**/submitit/*_submission.sh")}


@contextmanager
def fake_slurm(place: Path, patch: pytest.MonkeyPatch) -> Iterator[Submitted]:
    """An sbatch that keeps what it is given; the queue says nothing."""
    programs = place / "bin"
    programs.mkdir()
    texts = {"sbatch": SBATCH.format(place=place)}
    for name in ("sbatch", "srun", "squeue", "sacct", "scancel"):
        (programs / name).write_text(texts.get(name, "#!/bin/sh\n"))
        (programs / name).chmod(0o755)
    patch.setenv("PATH", str(programs), prepend=":")
    yield lambda: {path.read_text() for path in place.glob("submitted-*")}


@contextmanager
def this_machine(place: Path, patch: pytest.MonkeyPatch) -> Iterator[Submitted]:
    """The commands of the pilots that run, as a shell would take them."""

    def commands() -> set[str]:
        lines = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
        pilots = {shlex.join(words) + "\n" for words in lines if is_pilot(words)}
        return pilots or commands()  # they are about to start

    def is_pilot(words: list[str]) -> bool:
        return words[-2:-1] == ["submitit_packs.pilot"] and words[-1].startswith(str(place))

    yield commands


SYSTEMS: dict[str, Callable[[Path, pytest.MonkeyPatch], AbstractContextManager[Submitted]]]
SYSTEMS = {"pbs": fake_pbs, "slurm": fake_slurm, "local": this_machine}


def words_for(name: str, place: Path) -> list[str]:
    (place / "small.yaml").write_text(SLURM_SITE)
    site = ("--site", "small.yaml") if name == "slurm" else ()
    account = ("--account", "physics") if name == "pbs" else ()
    return ["submit", *STUDY, "--cluster", name, *site, *account, *SETUP]


def scripts(printed: str) -> set[str]:
    """Scripts that a dry run prints between its own lines, which name packs and sum up."""
    parts = re.split(r"^# (?:pack-|\d+ jobs|\d+ batches).*\n(?:#   .*\n)*", printed, flags=re.M)
    return {PACK.sub("pack", part) for part in parts if part}


def submit_once(words: list[str], patch: pytest.MonkeyPatch, look: Submitted) -> set[str]:
    """Submit, read the submitted scripts, and cancel them."""
    results: set[str] = set()

    def interrupt(_seconds: float) -> None:
        results.update(look())
        raise KeyboardInterrupt

    with patch.context() as local:
        local.setattr(submission, "time", SimpleNamespace(sleep=interrupt))
        assert main(words) == 1
    return {PACK.sub("pack", text) for text in results}


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("results", ["results", "there/a b"])
def test_a_dry_run_prints_the_submitted_scripts(
    name: str,
    results: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*words_for(name, tmp_path), "--results", results]
    with SYSTEMS[name](tmp_path, monkeypatch) as look:
        assert main([*words, "--dry-run"]) == 0
        printed = scripts(capsys.readouterr().out)
        assert printed
        assert all(str(tmp_path) in script for script in printed), "directories are absolute"
        assert submit_once(words, monkeypatch, look) == printed


def test_experiments_already_in_packs_are_not_printed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second submission attaches to it, whether or not the first one goes on."""
    monkeypatch.chdir(tmp_path)
    words = words_for("slurm", tmp_path)
    with fake_slurm(tmp_path, monkeypatch), monkeypatch.context() as local:
        local.setattr(Controller, "cancel", lambda _: None)
        submit_once(words, monkeypatch, set)
        capsys.readouterr()
        assert main([*words, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert scripts(printed) == set()
    assert "are in packs already\n" in printed
    assert "# 0 jobs" in printed
