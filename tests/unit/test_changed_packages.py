"""Packages whose tests `make test` runs."""

import subprocess
from pathlib import Path

import pytest

from tests.changed_packages import due

PACKAGES = {"a": "[]", "b": '["A>=1", "numpy"]', "c": "[\"b; python_version > '3'\"]", "d": "[]"}


def git(root: Path, *words: str) -> None:
    own = ("-c", "user.name=x", "-c", "user.email=x@x")
    subprocess.run(["git", *own, *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository of packages, of which c needs b, and b needs a."""
    for name, needs in PACKAGES.items():
        (tmp_path / "packages" / name).mkdir(parents=True)
        project = f'[project]\nname = "{name}"\ndependencies = {needs}\n'
        (tmp_path / "packages" / name / "pyproject.toml").write_text(project)
    (tmp_path / "src/kvscope/api").mkdir(parents=True)
    (tmp_path / "src/kvscope/api/names.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "start")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("packages/d/x.py", {"d"}),
        ("packages/a/x.py", {"a", "b", "c"}),
        ("packages/c/tests/x.py", {"c"}),
        ("src/kvscope/api/names.py", {*PACKAGES}),
        ("src/kvscope/other.py", set()),
        ("packages/README.md", set()),
    ],
)
@pytest.mark.parametrize("committed", [False, True], ids=["in the working tree", "committed"])
def test_tests_are_due_where_a_package_the_api_or_what_it_needs_changed(
    root: Path, file: str, expected: set[str], committed: bool
):
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text("changed")
    if committed:
        git(root, "add", ".")
        git(root, "commit", "-qm", "change")
    assert due(root, "HEAD~1" if committed else "HEAD") == expected


def test_where_nothing_changed_none_are_due_and_all_are_where_the_commit_is_not_known(root: Path):
    assert due(root, "HEAD") == set()
    assert due(root, "@{upstream}") == {*PACKAGES}


def test_a_directory_without_git_has_all_due(tmp_path: Path):
    package = tmp_path / "packages" / "a"
    package.mkdir(parents=True)
    (package / "pyproject.toml").write_text('[project]\nname = "a"\n')
    assert due(tmp_path, "HEAD") == {"a"}
