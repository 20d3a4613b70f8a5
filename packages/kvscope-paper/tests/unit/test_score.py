"""`kvscope score`: a run's own trace has no difference; a planted error is found at its step."""

import csv
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kvscope.base.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, BadInput
from kvscope.cli.main import main
from kvscope.judge.records import read_records
from kvscope_paper.score.score import score, steps_of
from kvscope_paper.score.trace import SEPARATOR, TracedStep
from tests.unit.report_fixture import Fake, write_experiment


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a scarce cache, whose requests are preempted."""
    return write_experiment(
        Fake({"scarce": 1}, "recompute", repeats=1), tmp_path_factory.mktemp("r")
    )


@pytest.fixture(scope="module")
def steps(run: Path) -> list[TracedStep]:
    result = list(steps_of(read_records(run), 0, run))
    assert sum(step.preempted or 0 for step in result) > 2
    return result


def write(steps: list[TracedStep], path: Path) -> Path:
    rows = [asdict(step) for step in steps]
    if path.suffix == ".json":
        path.write_text(json.dumps({"steps": rows}), encoding="utf-8")
        return path
    for row in rows:
        row["victims"] = SEPARATOR.join(row["victims"] or ())
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_the_run_itself_as_a_trace_differs_nowhere(run, steps, tmp_path, suffix):
    comparison = score(write(steps, tmp_path / f"own{suffix}"), run)
    assert (comparison.first_divergence, comparison.steps_equal) == (None, len(steps))
    assert comparison.preemptions[0] == comparison.preemptions[1] == comparison.victims_equal
    assert comparison.recomputed_tokens[0] == comparison.recomputed_tokens[1] > 0
    assert "no step differs" in "\n".join(comparison.lines)


@pytest.mark.parametrize(
    ("column", "wrong"), [("tokens", 1), ("requests", 1), ("preempted", 3), ("kv_blocks_used", 2)]
)
def test_a_planted_error_is_found_at_its_step(run, steps, tmp_path, column, wrong):
    at = len(steps) // 2
    planted = replace(steps[at], **{column: getattr(steps[at], column) + wrong})
    comparison = score(write([*steps[:at], planted, *steps[at + 1 :]], tmp_path / "toy.csv"), run)
    assert comparison.first_divergence == at
    assert comparison.divergence.startswith(column)
    assert comparison.steps_equal == len(steps) - 1


def test_another_victim_is_found_although_all_counts_agree(run, steps, tmp_path):
    at = next(number for number, one in enumerate(steps) if one.preempted)
    planted = replace(steps[at], victims=("somebody else",))
    comparison = score(write([*steps[:at], planted, *steps[at + 1 :]], tmp_path / "toy.json"), run)
    assert comparison.first_divergence == at
    assert comparison.victims_equal == comparison.preemptions[1] - 1


def test_a_trace_that_ends_early_differs_where_it_ends(run, steps, tmp_path):
    comparison = score(write(steps[:-3], tmp_path / "short.csv"), run)
    assert comparison.first_divergence == len(steps) - 3
    assert "the trace ends" in comparison.divergence


def test_columns_that_a_trace_lacks_are_not_compared(run, steps, tmp_path):
    few = [TracedStep(step.step, step.requests, step.tokens) for step in steps]
    comparison = score(write(few, tmp_path / "few.json"), run)
    assert comparison.first_divergence is None
    assert comparison.compared == ("requests", "tokens")
    assert comparison.preemptions[0] is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("step,requests\n0,1\n", "lacks tokens"),
        ("step,requests,tokens\n", "no steps"),
        ("step,requests,tokens\n0,1,many\n", "not a number"),
        ("step,requests,tokens\n0,1,-4\n", "at least 0"),
        ("step,requests,tokens\n1,1,4\n", "expected 0"),
        ("step,requests,tokens\n0,1,4\n1,1,4.5\n", "row 2: tokens is '4.5' but must be a whole"),
        ("step,requests,tokens\n0,1,4\n1,1,inf\n", "row 2: tokens is 'inf', not a number"),
        # A table writes all of a column of counts with a NaN as floats.
        ("step,requests,tokens\n0,1,4.0\n1,1,\n2,1,4.0\n", "row 2 has no tokens"),
        ("step,requests,tokens\n0,1,4.0\n1,1,nan\n2,1,4.0\n", "row 2: tokens is 'nan', not a"),
        ("step,requests,tokens,preempted\n0,1,4,0.0\n1,1,4,\n", "row 2 has no preempted, which"),
        ("step,requests,tokens,duration_s\n0,1,4,\n1,1,4,0.5\n", "row 1 has no duration_s, which"),
    ],
)
def test_a_damaged_trace_is_refused_by_row_and_column(run, tmp_path, text, complaint):
    path = tmp_path / "damaged.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=complaint):
        score(path, run)


def test_counts_may_be_written_as_floats(run, steps, tmp_path):
    floats = [
        replace(step, tokens=float(step.tokens), requests=float(step.requests)) for step in steps
    ]
    assert score(write(floats, tmp_path / "floats.csv"), run).first_divergence is None


@pytest.mark.parametrize(
    ("shift", "flags", "code"),
    [
        (0, [], EXIT_DONE),
        (0, ["--check"], EXIT_DONE),
        (1, [], EXIT_DONE),
        (1, ["--check"], EXIT_FAILED),
        (1, ["--check", "--json"], EXIT_FAILED),
        (-(10**6), ["--check"], EXIT_BAD_INPUT),
    ],
)
def test_a_divergence_is_a_result_and_fails_a_check(run, steps, tmp_path, shift, flags, code):
    planted = replace(steps[-1], tokens=steps[-1].tokens + shift)
    trace = write([*steps[:-1], planted], tmp_path / "trace.csv")
    assert main(["score", str(trace), "--run", str(run), *flags]) == code
