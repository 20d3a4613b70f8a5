"""The packages of this repository whose tests are due: those that changed since a commit.

A package's tests are due where its own files changed, the names that packages may use
(`kvscope.api`), or a package of this repository that it depends on.
"""

import re
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path

API = "src/kvscope/api/"


def due(root: Path, since: str) -> set[str]:
    """Names of the packages that differ from a commit, the working tree included.

    All of them if git does not know the commit, as where a branch has no upstream.
    """
    needed = {path.parent.name: _needs(path) for path in root.glob("packages/*/pyproject.toml")}
    changed = _changed_files(root, since)
    if changed is None or any(name.startswith(API) for name in changed):
        return {*needed}
    return _with_dependents({*_packages(changed)} & {*needed}, needed)


def _packages(files: Iterable[str]) -> Iterable[str]:
    return (name.split("/")[1] for name in files if name.startswith("packages/"))


def _with_dependents(changed: set[str], needed: dict[str, set[str]]) -> set[str]:
    result = changed | {name for name, needs in needed.items() if needs & changed}
    return result if result == changed else _with_dependents(result, needed)


def _needs(pyproject: Path) -> set[str]:
    """Names of all that a package depends on, as its directory would be called."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    optional = project.get("optional-dependencies", {}).values()
    wanted = [*project.get("dependencies", ()), *(word for words in optional for word in words)]
    names = (re.match(r"[\w.-]+", requirement) for requirement in wanted)
    return {re.sub(r"[-_.]+", "-", name.group()).lower() for name in names if name}


def _changed_files(root: Path, since: str) -> list[str] | None:
    """Files that differ from a commit, and new ones; None if that cannot be told."""
    listings = (
        ["git", "diff", "--name-only", "-z", since, "--"],
        ["git", "ls-files", "--others", "--exclude-standard", "-z"],
    )
    try:
        done = [
            subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
            for command in listings
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return [name for one in done for name in one.stdout.split("\0") if name]
