"""Completion, as a shell asks for it: what may stand where the cursor is, in a moment."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvscope.cli import completion
from kvscope.collect import importer
from kvscope.plan import layers
from kvscope.tables import runfile

CONFIG = Path(__file__).parents[2] / "config"
WORD_BREAKS = " \t\n\"'><=;|&(:"  # bash's
HEAVY = {"torch", "vllm", "hydra", "pydantic", "pandas", "numpy", "yaml", "pyarrow"}


def ask(line: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Ask as a shell does, through the environment; the answer goes to a file."""
    environment = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_COMP_WORDBREAKS": WORD_BREAKS,
        "_ARGCOMPLETE_STDOUT_FILENAME": str(directory.parent / "answer"),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line.encode())),
    }
    return subprocess.run(
        [sys.executable, "-m", "kvscope.cli"],
        cwd=directory,
        env=os.environ | environment | variables,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory of a user's, with a study, a model, a planned study and two runs."""
    here = tmp_path / "here"
    for name in (
        *("config/study/mine.yaml", "config/model/mine.yaml", "results/studies/old/manifest.json"),
        *("results/experiments/one/run.json", "results/experiments/planned/experiment.yaml"),
        *("tried/run.json", "notes/text.txt"),
    ):
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return here


def complete(line: str, here: Path) -> list[str]:
    (here.parent / "answer").unlink(missing_ok=True)
    done = ask(line, here)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return [word.strip() for word in (here.parent / "answer").read_text().split("\n") if word]


def test_commands(here: Path) -> None:
    assert set(complete("kvscope ", here)) > {"new", "plan", "run", "collect", "report", "check"}
    assert complete("kvscope pl", here) == ["plan"]


def test_options(here: Path) -> None:
    assert set(complete("kvscope run --", here)) >= {"--help", "--out", "--force", "--config-dir"}


@pytest.mark.thorough
def test_studies_of_all_layers(here: Path) -> None:
    shipped = set(layers.options(CONFIG, "study"))
    assert set(complete("kvscope plan study=", here)) == shipped | {"mine"}
    assert complete("kvscope plan study=mi", here) == ["mine"]
    elsewhere = complete("kvscope plan --config-dir notes study=", here)
    assert set(elsewhere) == shipped


@pytest.mark.thorough
def test_options_of_groups(here: Path) -> None:
    assert set(complete("kvscope plan model=", here)) == {*layers.options(CONFIG, "model"), "mine"}
    assert "chunked" in complete("kvscope run seed=3 batching=", here)
    assert complete("kvscope plan model=mine,tiny-o", here) == ["mine,tiny-opt"]


@pytest.mark.thorough
def test_keys_and_the_values_that_are_few(here: Path) -> None:
    assert complete("kvscope plan cache.bl", here) == ["cache.block_size=", "cache.blocks="]
    assert complete("kvscope plan st", here) == ["study="]
    layouts = ["by_layer", "by_k_and_v", "by_block"]
    assert complete("kvscope run cache.layout=", here) == layouts
    assert complete("kvscope run model.tie_word_embeddings=", here) == ["true", "false"]
    assert complete("kvscope plan seed=", here) == []
    assert "workload.name=" not in complete("kvscope plan work", here)


@pytest.mark.thorough
def test_runs_and_planned_studies(here: Path) -> None:
    for command in ("check", "analyse", "collect"):
        assert set(complete(f"kvscope {command} ", here)) == {"results/experiments/one", "tried"}
    assert complete("kvscope check tr", here) == ["tried"]
    assert complete("kvscope check no", here) == ["notes/"]
    assert set(complete("kvscope report ", here)) == {"old", "results/experiments/one", "tried"}
    file = "results/experiments/planned/experiment.yaml"
    assert complete("kvscope run results/experiments/planned/e", here) == [file]


def test_a_run_is_told_by_the_file_that_runs_leave() -> None:
    assert completion.RUN_FILE == runfile.RUN_FILE


def test_kinds_of_imports(here: Path) -> None:
    assert complete("kvscope import ", here) == [*importer.kinds()]


@pytest.mark.thorough
@pytest.mark.parametrize("line", ["kvscope plan study=", "kvscope run ca", "kvscope report "])
def test_nothing_heavy_is_imported(line: str, here: Path) -> None:
    listed = ask(line, here, PYTHONPROFILEIMPORTTIME="1").stderr
    imported = {row.rpartition("|")[2].strip().partition(".")[0] for row in listed.splitlines()}
    assert "argcomplete" in imported
    assert imported & HEAVY == set()


def test_bash_completes(here: Path, require) -> None:
    bash = shutil.which("bash")
    require("bash", bash is not None, "install it")
    program = here.parent / "bin" / "kvscope"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kvscope.cli "$@"\n')
    program.chmod(0o755)
    script = """
        eval "$(python -m argcomplete.scripts.register_python_argcomplete kvscope)"
        complete -p kvscope >&2
        COMP_LINE='kvscope plan study=mi' COMP_TYPE=9
        COMP_POINT=${#COMP_LINE}
        _python_argcomplete kvscope
        echo "${COMPREPLY[@]}"
    """
    path = f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [str(bash), "-c", script],
        cwd=here,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["mine"], done.stderr
    assert "_python_argcomplete kvscope" in done.stderr
