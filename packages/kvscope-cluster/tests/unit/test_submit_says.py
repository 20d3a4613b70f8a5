"""Messages of `kvscope submit` are in a file at once, whatever becomes of the command."""

import os
import subprocess
import sys
from pathlib import Path

KILLED = """
import os, signal
from kvscope_cluster import submission
from kvscope.cli.main import main
def submit(manifest, results, cluster, say):
    say("pack-1: slurm job 7")
    os.kill(os.getpid(), signal.SIGKILL)
submission.submit = submit
main(["submit", "model=tiny-llama", "--cluster", "local", "--results", "results"])
"""


def test_messages_of_submit_are_in_a_file_at_once(tmp_path: Path) -> None:
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-c", KILLED]
        subprocess.run(command, cwd=tmp_path, env=buffered, stdout=log, stderr=log)
    assert (tmp_path / "log").read_text() == "pack-1: slurm job 7\n"
