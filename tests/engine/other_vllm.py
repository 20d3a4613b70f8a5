"""Environments with versions of vLLM that are not this one's, from envs/vllm.txt."""

import fcntl
import os
import re
import subprocess
from pathlib import Path

from ..conftest import Require

ROOT = Path(__file__).parents[2]


def pinned(file: str) -> list[str]:
    """The releases of vLLM that a file of envs/ pins."""
    return re.findall(r"^vllm(?:-cpu)?==(\d+\.\d+)", (ROOT / "envs" / file).read_text(), re.M)


def python_of(release: str, require: Require) -> str:
    """The Python of an environment with a release of envs/vllm.txt, which is installed if need be.

    Without a network, and without the release in a cache, the test is skipped or fails.
    """
    # In the cache that `make env` uses, for which the wheel was perhaps downloaded before.
    environment = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
    cache = ROOT / ".cache"
    cache.mkdir(exist_ok=True)
    with (cache / f"vllm-{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        made = subprocess.run(
            [ROOT / "workflow" / "scripts" / "install-vllm.sh", release],
            capture_output=True,
            text=True,
            env=environment,
        )
    require(f"vLLM {release}", made.returncode == 0, made.stderr.strip())
    return str(cache / f"vllm-{release}" / "bin" / "python")
