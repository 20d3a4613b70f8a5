"""What archives and registries are told of the project is one thing."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

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


def test_the_citation_is_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert read("CITATION.cff")["version"] == project["version"]
