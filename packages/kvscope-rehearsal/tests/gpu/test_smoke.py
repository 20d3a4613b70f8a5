"""The smoke test for machines with a GPU runs without a GPU, in small."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
FILES = {"report.txt", "report.json", "log.txt", "runs.tar.xz"}


def rehearse(tmp_path: Path, *steps: str, root: Path = ROOT) -> tuple[int, str, Path]:
    """The exit status, the output, and the results of a rehearsal."""
    out = tmp_path / "out"
    places = {"OUT": str(out), "WORK": str(tmp_path / "work")}
    places["PYTHON"] = str(ROOT / ".venv/bin/python")
    done = subprocess.run(
        [root / "bench/gpu/smoke.sh", "--rehearse", *steps],
        env=os.environ | places,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr, out


def damaged_checkout(directory: Path, module: str) -> Path:
    """A checkout, one of whose steps is a file that is not Python."""
    for entry in ROOT.iterdir():
        if entry.name != "bench":
            (directory / entry.name).symlink_to(entry)
    shutil.copytree(ROOT / "bench/gpu", directory / "bench/gpu")
    (directory / f"bench/gpu/smoke/{module}.py").write_text("def main(seconds: float)")
    return directory


def test_the_steps_pass_and_leave_their_results(triton, tmp_path: Path):
    steps = ("facts", "copies", "offloading", "kernels", "recording", "engine")
    code, said, out = rehearse(tmp_path, *steps)
    assert code == 0, said
    assert {path.name for path in out.iterdir()} == FILES
    result = json.loads((out / "report.json").read_text())
    assert [step["outcome"] for step in result["steps"]] == ["passed"] * 7
    assert result["provenance"]["versions"]["kvscope"]
    assert result["rehearsed"]
    runs = {run["run"]: run["outcome"] for run in result["engine"]}
    assert runs["recompute"] == runs["swap"] == runs["ample"] == "passed"
    assert set(runs.values()) <= {"passed", "skipped: no time left"}


def test_a_study_and_a_server_pass_and_are_in_the_report(triton, tmp_path: Path):
    code, said, out = rehearse(tmp_path, "study", "server")
    assert code == 0, said
    result = json.loads((out / "report.json").read_text())
    assert result["study"] == {
        "study": "rehearsal",
        "page": True,
        "experiments": 3,
        "valid": 3,
        "time_source": ["rehearsed"],
    }
    assert result["server"]["requests"] == 3
    assert "3 of 3 experiments valid" in (out / "report.txt").read_text()


def test_a_broken_step_is_said_first_and_the_others_are_done(triton, tmp_path: Path):
    (tmp_path / "checkout").mkdir()
    root = damaged_checkout(tmp_path / "checkout", "copies")
    code, _, out = rehearse(tmp_path, "facts", "copies", "offloading", root=root)
    assert code == 1
    first, second, third, *_ = (out / "report.txt").read_text().splitlines()
    assert first == "1 of 4 steps FAILED"
    assert second == "FAILED copies:"
    assert third.startswith("  SyntaxError: ")
    result = json.loads((out / "report.json").read_text())
    outcomes = {step["step"]: step["outcome"] for step in result["steps"]}
    assert outcomes == {
        "imports": "passed",
        "facts": "passed",
        "copies": "failed",
        "offloading": "passed",
    }
    assert result["offloading"]


def test_an_unknown_step_is_refused_by_name(tmp_path: Path):
    code, said, _ = rehearse(tmp_path, "fact")
    assert code == 2
    assert said.startswith("There is no step 'fact': facts copies offloading")


@pytest.mark.parametrize("given", [{}, {"PACK": "/nowhere"}])
def test_without_an_environment_one_sentence_says_what_to_do(tmp_path: Path, given):
    for name in ("bench", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    script = tmp_path / "smoke.sh"
    shutil.copy(ROOT / "bench/gpu/smoke.sh", script)
    script.write_text(script.read_text().replace('"$(dirname "$0")/../.."', f'"{tmp_path}"'))
    work = {"WORK": str(tmp_path / "work")}
    done = subprocess.run([script], env=os.environ | given | work, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("There is no vLLM for CUDA here: run 'make env DEVICE=cuda'")
