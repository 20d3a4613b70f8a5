"""The table of what has run where: real GPUs alone, the newest answer, tests that exist."""

import json
from pathlib import Path
from typing import Any

from kvscope.cli.docs import regenerate
from kvscope_rehearsal.documents import (
    NOT_YET,
    ROOT,
    TOPICS,
    Topic,
    on_gpu,
    reports,
    run,
    what_ran_where,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "GPU.md"


def write(directory: Path, date: str, rehearsed: bool = False, **found: Any) -> None:
    """A report, of which a topic asks one thing."""
    source = {"date": date, "gpu": {"name": "NVIDIA A100-SXM4"}}
    (directory / date).mkdir()
    report = {"rehearsed": rehearsed, "provenance": source, "engine": None, **found}
    (directory / date / "report.json").write_text(json.dumps(report))


def test_the_newest_report_that_has_an_answer_counts(tmp_path: Path) -> None:
    topic = Topic("swap", run("swap"))
    assert on_gpu(topic, reports(tmp_path)) == NOT_YET
    row = {"run": "swap", "outcome": "passed", "same_tokens": "8 of 8"}
    write(tmp_path, "2026-01-01", engine=[row | {"same_tokens": "7 of 8"}])
    write(tmp_path, "2026-02-01", engine=[row])
    write(tmp_path, "2026-03-01", engine=[row | {"outcome": "failed"}])
    write(tmp_path, "2026-04-01", rehearsed=True, engine=[row])
    expected = "tokens of the ample cache: 8 of 8; oracles hold (A100-SXM4, 2026-02-01)"
    assert on_gpu(topic, reports(tmp_path)) == expected


def test_every_rehearsal_that_is_named_is_a_test() -> None:
    assert [topic.what for topic in TOPICS if not (ROOT / topic.rehearsed).exists()] == []


def test_the_table_of_the_document_is_current() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert regenerate(text) == text, f"run `python -m kvscope.cli.docs {DOCUMENT.parent}`"


def test_every_topic_is_in_the_table() -> None:
    table = what_ran_where()
    assert [topic.what for topic in TOPICS if f"| {topic.what} |" not in table] == []
