"""Metadata of archives and registries, made from CITATION.cff.

python workflow/scripts/metadata.py            writes codemeta.json, .zenodo.json and, of every
                                               pyproject.toml, version, authors and repository
python workflow/scripts/metadata.py --check    names files that differ (exit code 1), and says
                                               which fields are still placeholders
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CITATION = "CITATION.cff"
# The person who releases fills these in: CONTRIBUTING.md, Releases.
PLACEHOLDERS = {
    "repository-code": "https://repository.example/kvscope",
    "doi": "10.5281/zenodo.0000000",
}

Json = dict[str, Any]


def read_citation(root: Path = ROOT) -> Json:
    """CITATION.cff; it must have every field that is filled in for a release."""
    found: Json = yaml.safe_load((root / CITATION).read_text(encoding="utf-8"))
    for key in ("version", "date-released", "authors", *PLACEHOLDERS):
        if not found.get(key):
            sys.exit(f"{CITATION} has no {key}: CONTRIBUTING.md, Releases, says what it is")
    return found


def placeholder_note(citation: Mapping[str, Any]) -> str | None:
    """A sentence that names the fields which are still placeholders; None if there are none."""
    left = [f"{key} ({value})" for key, value in PLACEHOLDERS.items() if citation[key] == value]
    if not left:
        return None
    verb = "is still a placeholder" if len(left) == 1 else "are still placeholders"
    return (
        f"Not to be published yet: in {CITATION} {' and '.join(left)} {verb}; fill in what is "
        "known and run workflow/scripts/metadata.py (CONTRIBUTING.md, Releases)."
    )


def written(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Each file that follows from CITATION.cff, and what it has to contain."""
    citation = read_citation(root)
    yield root / "codemeta.json", _json(codemeta(citation))
    yield root / ".zenodo.json", _json(zenodo(citation))
    for path in (root / "pyproject.toml", *sorted(root.glob("packages/*/pyproject.toml"))):
        yield path, pyproject(path.read_text(encoding="utf-8"), citation)


def codemeta(citation: Mapping[str, Any]) -> Json:
    """The project in CodeMeta 2.0."""
    paper = citation["references"][0]
    return {
        "@context": "https://doi.org/10.5063/schema/codemeta-2.0",
        "@type": "SoftwareSourceCode",
        "name": citation["title"],
        "description": citation["abstract"],
        "version": citation["version"],
        "datePublished": str(citation["date-released"]),
        "license": f"https://spdx.org/licenses/{citation['license']}",
        "codeRepository": citation["repository-code"],
        "identifier": f"https://doi.org/{citation['doi']}",
        "programmingLanguage": "Python",
        "operatingSystem": "Linux",
        "runtimePlatform": "Python 3.11",
        "keywords": citation["keywords"],
        "author": [_codemeta_author(author) for author in citation["authors"]],
        "referencePublication": [
            {
                "@type": "ScholarlyArticle",
                "@id": f"https://doi.org/{paper['doi']}",
                "name": paper["title"],
            }
        ],
    }


def zenodo(citation: Mapping[str, Any]) -> Json:
    """The project as Zenodo's deposit takes it; Zenodo itself adds the DOI."""
    return {
        "title": citation["title"],
        "description": citation["abstract"],
        "version": citation["version"],
        "upload_type": "software",
        "license": citation["license"],
        "creators": [_zenodo_creator(author) for author in citation["authors"]],
        "keywords": citation["keywords"],
        "related_identifiers": [
            {
                "identifier": citation["repository-code"],
                "relation": "isSupplementTo",
                "scheme": "url",
            },
            {
                "identifier": citation["references"][0]["doi"],
                "relation": "references",
                "scheme": "doi",
            },
        ],
    }


def pyproject(text: str, citation: Mapping[str, Any]) -> str:
    """A pyproject.toml with the version, authors and repository of the citation."""
    authors = ", ".join(f"{{ name = {json.dumps(name(one))} }}" for one in citation["authors"])
    lines = {
        "version": json.dumps(citation["version"]),
        "authors": f"[{authors}]",
        "urls": f"{{ Repository = {json.dumps(citation['repository-code'])} }}",
    }
    for key, value in lines.items():
        line = f"{key} = {value}".replace("\\", r"\\")
        text, count = re.subn(rf"^{key} = .*$", line, text, count=1, flags=re.MULTILINE)
        if not count:
            raise ValueError(f"a pyproject.toml has no line '{key} = …'")
    return text


def name(author: Mapping[str, str]) -> str:
    """'Ada Lovelace', or the name of authors that are not one person."""
    return author.get("name") or f"{author['given-names']} {author['family-names']}"


def _codemeta_author(author: Mapping[str, str]) -> Json:
    if "name" in author:
        return {"@type": "Organization", "name": author["name"]}
    given = {"givenName": author["given-names"], "familyName": author["family-names"]}
    orcid = {"@id": author["orcid"]} if "orcid" in author else {}
    employer = {"@type": "Organization", "name": author.get("affiliation")}
    where = {"affiliation": employer} if "affiliation" in author else {}
    return {"@type": "Person"} | orcid | given | where


def _zenodo_creator(author: Mapping[str, str]) -> Json:
    if "name" in author:
        return {"name": author["name"]}
    found = {"name": f"{author['family-names']}, {author['given-names']}"}
    if "orcid" in author:
        found["orcid"] = author["orcid"].removeprefix("https://orcid.org/")
    if "affiliation" in author:
        found["affiliation"] = author["affiliation"]
    return found


def _json(content: Json) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the files, or only compare them."""
    changed = {path: text for path, text in written() if path.read_text(encoding="utf-8") != text}
    names = ", ".join(str(path.relative_to(ROOT)) for path in changed)
    if sys.argv[1:] == ["--check"]:
        if changed:
            sys.exit(f"{names} differ from {CITATION}: run workflow/scripts/metadata.py")
    else:
        for path, text in changed.items():
            path.write_text(text, encoding="utf-8")
        print(f"Written: {names}" if changed else f"All follow {CITATION} already.")
    if note := placeholder_note(read_citation()):
        print(note)


if __name__ == "__main__":
    main()
