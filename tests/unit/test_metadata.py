"""Archives and registries get the same metadata of the project."""

import json
import re
import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import kvscope

ROOT = Path(__file__).parents[2]
metadata = SimpleNamespace(**runpy.run_path(str(ROOT / "workflow/scripts/metadata.py")))


def of_root(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read(name: str) -> dict[str, Any]:
    text = (ROOT / name).read_text(encoding="utf-8")
    result: dict[str, Any] = json.loads(text) if name.endswith("json") else yaml.safe_load(text)
    return result


@pytest.mark.parametrize("path", [path for path, _ in metadata.written()], ids=of_root)
def test_it_follows_from_the_citation(path: Path):
    assert path.read_text(encoding="utf-8") == dict(metadata.written())[path]


@pytest.mark.parametrize("name", ["codemeta.json", ".zenodo.json"])
def test_archives_get_the_metadata_of_the_citation(name):
    citation, result = read("CITATION.cff"), read(name)
    assert result["version"] == citation["version"]
    assert result["description"] == citation["abstract"]
    assert result["keywords"] == citation["keywords"]
    (author,) = result.get("author") or result["creators"]
    assert author["name"] == metadata.name(citation["authors"][0])
    assert result["license"].endswith(citation["license"])
    assert citation["references"][0]["doi"] in json.dumps(result)
    assert citation["repository-code"] in json.dumps(result)


def test_the_doi_is_where_readers_of_metadata_look_for_it():
    """Zenodo gives the DOI itself, so that its file has none."""
    doi = read("CITATION.cff")["doi"]
    assert read("codemeta.json")["identifier"] == f"https://doi.org/{doi}"
    assert doi not in json.dumps(read(".zenodo.json"))


@pytest.mark.parametrize(
    "file", [ROOT / "pyproject.toml", *ROOT.glob("packages/*/pyproject.toml")], ids=of_root
)
def test_all_packages_have_version_authors_and_repository_of_the_citation(file: Path):
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    citation = read("CITATION.cff")
    assert project["version"] == citation["version"] == kvscope.__version__
    assert project["authors"] == [{"name": metadata.name(one)} for one in citation["authors"]]
    assert project["urls"] == {"Repository": citation["repository-code"]}


PERSON = {
    "given-names": "Ada",
    "family-names": "Lovelace",
    "orcid": "https://orcid.org/0000-0002-1825-0097",
    "affiliation": "Analytical Engine Laboratory",
}


def test_people_are_named_as_each_archive_names_them():
    citation = read("CITATION.cff") | {"authors": [PERSON, {"name": "Others"}]}
    person, others = metadata.codemeta(citation)["author"]
    assert (person["givenName"], person["familyName"]) == ("Ada", "Lovelace")
    assert (person["@type"], person["@id"]) == ("Person", PERSON["orcid"])
    assert person["affiliation"]["name"] == PERSON["affiliation"]
    assert others == {"@type": "Organization", "name": "Others"}
    assert metadata.zenodo(citation)["creators"] == [
        {
            "name": "Lovelace, Ada",
            "orcid": "0000-0002-1825-0097",
            "affiliation": PERSON["affiliation"],
        },
        {"name": "Others"},
    ]
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(metadata.pyproject(text, citation))["project"]
    assert project["authors"] == [{"name": "Ada Lovelace"}, {"name": "Others"}]


def test_placeholders_are_named_until_they_are_filled_in():
    citation = read("CITATION.cff") | metadata.PLACEHOLDERS
    note = metadata.placeholder_note(citation)
    assert "repository-code (https://repository.example/kvscope) and doi (10.5281/zenodo" in note
    note = metadata.placeholder_note(citation | {"doi": "10.5281/zenodo.1234567"})
    assert "doi" not in note
    assert "is still a placeholder" in note
    filled = {"doi": "10.5281/zenodo.1234567", "repository-code": "https://a.org/kvscope"}
    assert metadata.placeholder_note(citation | filled) is None


def test_the_list_for_releases_has_every_placeholder():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for key, value in metadata.PLACEHOLDERS.items():
        assert f"| `{key}` | `{value}` |" in text


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
