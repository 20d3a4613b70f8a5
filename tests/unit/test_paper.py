"""The paper is cited alike wherever it is."""

import re
from pathlib import Path

import pytest
import yaml

from kvscope.report.paper import PAPER
from kvscope.report.study import report

from .report_fixture import Fake, write_study

ROOT = Path(__file__).parents[2]


def words(text: str) -> str:
    """The text without line breaks, quotation marks of Markdown and links."""
    text = re.sub(r"^> ?", "", text, flags=re.M)
    return re.sub(r"\s+", " ", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text))


def test_the_citation_file_cites_it():
    (reference,) = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["references"]
    authors = [(author["given-names"], author["family-names"]) for author in reference["authors"]]
    assert reference["type"] == "conference-paper"
    assert tuple(authors) == PAPER.authors
    assert reference["title"] == PAPER.title
    assert reference["conference"]["name"] == PAPER.conference
    assert (reference["year"], reference["doi"]) == (PAPER.year, PAPER.doi)


@pytest.mark.parametrize("document", ["README.md", "docs/index.md"])
def test_the_first_pages_cite_it_and_link_to_it(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    section = text.partition("## The paper\n")[2].partition("\n## ")[0]
    assert PAPER.citation in words(section)
    assert f"](https://doi.org/{PAPER.doi})" in section


def test_a_page_cites_it(tmp_path):
    results = write_study(tmp_path, [Fake({"seed": 1}, status=None)])
    assert PAPER.citation in report(["fake"], results, None).read_text(encoding="utf-8")


DOCUMENTS = [path for path in sorted((ROOT / "docs").glob("*.md")) if not path.is_symlink()]


@pytest.mark.parametrize(
    "document", [p for p in DOCUMENTS if p.name != "index.md"], ids=lambda p: p.name
)
def test_a_document_that_speaks_of_it_links_to_it_at_once(document):
    text = document.read_text(encoding="utf-8")
    first = re.search(r".?\bthe paper\b[^](]*(](\(.*?\)))?", text, re.I)
    assert first is None or (first[0][0], first[2]) == ("[", "(index.md#the-paper)")
