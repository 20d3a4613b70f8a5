"""What archives and registries are told of the project is one thing."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvscope

ROOT = Path(__file__).parents[2]


def read(name: str) -> dict[str, Any]:
    text = (ROOT / name).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text) if name.endswith("json") else yaml.safe_load(text)
    return found


@pytest.mark.parametrize("name", ["codemeta.json", ".zenodo.json"])
def test_it_agrees_with_the_citation(name):
    citation, found = read("CITATION.cff"), read(name)
    assert found["version"] == citation["version"]
    assert found["description"] == citation["abstract"]
    assert found["keywords"] == citation["keywords"]
    (author,) = found.get("author") or found["creators"]
    assert [{"name": author["name"]}] == citation["authors"]
    assert found["license"].endswith(citation["license"])
    assert citation["references"][0]["doi"] in json.dumps(found)


@pytest.mark.parametrize(
    "file", [ROOT / "pyproject.toml", *ROOT.glob("packages/*/pyproject.toml")], ids=str
)
def test_all_packages_have_the_version_of_the_citation(file: Path):
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    assert project["version"] == read("CITATION.cff")["version"]
    assert kvscope.__version__ == project["version"]


@pytest.mark.parametrize("name", ["envs/Containerfile", "envs/kvscope.def"])
def test_container_recipes_name_the_version_and_the_python_of_the_pins(name: str):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert read("CITATION.cff")["version"] in text
    assert "library/python:3.11-slim" in text or "From: python:3.11-slim" in text
    assert "make env DEVICE=" in text


def test_the_newest_release_of_the_changelog_is_that_of_the_citation():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest, date = re.findall(r"^## (\d+\.\d+\.\d+) \((.+)\)$", changelog, re.MULTILINE)[0]
    citation = read("CITATION.cff")
    assert (newest, date) == (citation["version"], str(citation["date-released"]))
