"""`kvscope references` writes the listed traces."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from kvscope.base.files import sha256_of
from kvscope.plan.grid import expand
from kvscope.workload.requests import Request
from kvscope_paper.score.references import STUDY, name_of, request_rows, write_references
from kvscope_paper.score.score import score
from tests.unit.report_fixture import Fake, write_experiment

ROOT = Path(__file__).parents[4]
LISTED = ROOT / "packages" / "kvscope-paper" / "docs" / "SCORE.md"


def listed() -> dict[str, str]:
    """The first digits of the SHA-256 of each reference, by its name."""
    text = LISTED.read_text(encoding="utf-8").partition("<!-- references -->")[2]
    text = text.partition("<!-- /references -->")[0]
    return dict(re.findall(r"^\| `([^`]+)`.* `([0-9a-f]{16})` \|$", text, re.MULTILINE))


def test_the_document_lists_every_reference_of_the_study() -> None:
    planned = [
        name_of(point.experiment) for point in expand(STUDY, [], ROOT / "config").experiments
    ]
    assert list(listed()) == planned
    assert len(planned) == 16


def test_requests_have_equal_ids_where_their_tokens_are_equal_from_the_start() -> None:
    tokens = np.arange(10, dtype=np.int32)
    prompts = [tokens, tokens[:8], np.append(tokens[:4], tokens[:5]), tokens[4:8]]
    made = [Request(str(n), None, prompt, 3) for n, prompt in enumerate(prompts)]
    rows = [json.loads(row) for row in request_rows(made, block_size=4)]
    assert [row["hash_ids"] for row in rows] == [[0, 1, 2], [0, 1], [0, 3, 4], [5]]
    assert [row["input_length"] for row in rows] == [10, 8, 9, 4]


def test_a_run_without_a_prefix_cache_hits_and_loads_nothing(tmp_path: Path) -> None:
    run = write_experiment(Fake({"scarce": 1}, "recompute", repeats=1), tmp_path)
    trace = tmp_path / "steps.csv"
    trace.write_text("step,requests,tokens,hit_tokens\n0,1,1,5\n")
    assert "hit_tokens" in score(trace, run).compared


@pytest.mark.thorough
@pytest.mark.slow
def test_references_are_those_that_are_listed_and_score_without_a_difference(
    tmp_path: Path,
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not here; run `make env`")
    result = write_references(tmp_path, ROOT / "config", sys.stderr)
    assert {reference.name: sha256_of(reference.path)[:16] for reference in result} == listed()
    for one in result:
        assert score(one.path, tmp_path / "runs" / one.name).first_divergence is None
