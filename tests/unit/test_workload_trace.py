"""Workloads made from a trace: the rows that are read, and those that are refused by line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvscope.base.errors import BadInput
from kvscope.base.files import sha256_of
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.workload import requests
from kvscope.workload import trace as traces

CONFIG = Path(__file__).parents[2] / "config"

# Two lines as in the Mooncake traces, and a third.
JSONL = """\
{"timestamp": 27000, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]}
{"timestamp": 30000, "input_length": 10, "output_length": 26, "hash_ids": [46]}

{"timestamp": 30500, "input_length": 300, "output_length": 1, "hash_ids": []}
"""
CSV = "prompt_tokens,output_tokens,arrival_s\n600,52,27\n10,26,30\n300,1,30.5\n"


def experiment(path: Path, *overrides: str) -> Experiment:
    words = ["workload=trace", f"workload.path='{path}'", *overrides]
    return expand(None, words, CONFIG).experiments[0].experiment


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(("name", "text"), [("t.jsonl", JSONL), ("t.csv", CSV)])
def test_both_formats_give_lengths_and_times_from_the_first_request(
    name: str, text: str, tmp_path: Path
) -> None:
    result = requests.build(experiment(written(tmp_path / name, text)))
    assert [len(r.prompt_token_ids) for r in result] == [600, 10, 300]
    assert [r.output_tokens for r in result] == [52, 26, 1]
    assert [r.arrival_s for r in result] == [0.0, 3.0, 3.5]


def test_num_requests_takes_the_first(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", JSONL)
    assert len(requests.build(experiment(path, "workload.num_requests=2"))) == 2
    with pytest.raises(BadInput, match=r"workload.num_requests is 4, but .* holds 3 requests"):
        requests.check(experiment(path, "workload.num_requests=4"))


def test_times_may_be_ignored_or_absent(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "prompt_tokens,output_tokens\n5,6\n7,8\n")
    result = requests.build(experiment(path, "workload.arrival=all_at_once"))
    assert [r.arrival_s for r in result] == [0.0, 0.0]
    with pytest.raises(BadInput, match=r"not every request of .* has a time"):
        requests.check(experiment(path))


def test_sources_name_the_file_and_its_checksum(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", CSV)
    assert experiment(path).workload.facts() == {
        "workload": "trace",
        "path": str(path),
        "sha256": sha256_of(path),
    }


LINE = {"timestamp": 1, "input_length": 5, "output_length": 5}

# A second line, and what the sentence must say beside the file and the line's number.
MALFORMED = [
    ("{", "not a JSON object"),
    ("[1]", "not a JSON object"),
    (json.dumps(LINE | {"input_length": 0}), "input_length is 0 but must be"),
    (json.dumps(LINE | {"input_length": 2.5}), "input_length is 2.5 but must be"),
    (json.dumps(LINE | {"input_length": True}), "input_length is True but must be"),
    (json.dumps(LINE | {"output_length": "many"}), "output_length is 'many' but must be"),
    (json.dumps({"timestamp": 1, "input_length": 5}), "output_length is None but must be"),
    (json.dumps(LINE | {"timestamp": -1}), "timestamp is -1 but must be"),
    (json.dumps(LINE | {"timestamp": "noon"}), "timestamp is 'noon' but must be"),
    (json.dumps(LINE | {"timestamp": [1]}), "timestamp is [1] but must be"),
    (json.dumps(LINE | {"timestamp": 0}), "arrives before the request above it"),
    (json.dumps(LINE | {"input_length": 2**24 + 1}), "a whole number of 1 to 16777216"),
    (json.dumps(LINE | {"timestamp": 10**400}), "timestamp is 1000"),
    ("[" * 100_000, "not a JSON object"),
    ('{"timestamp": ' + "9" * 5000 + "}", "not a JSON object"),
]


@pytest.mark.parametrize(("line", "complaint"), MALFORMED, ids=lambda text: text[:60])
def test_a_malformed_line_is_refused_by_its_number(
    line: str, complaint: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "t.jsonl", json.dumps(LINE) + "\n" + line + "\n")
    with pytest.raises(BadInput) as error:
        requests.check(experiment(path))
    assert f"{path}:2: " in str(error.value)
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("5", "output_tokens is None"),
        ("5," + "9" * 5000 + ",1", "output_tokens is '999"),
        ("5,x,1", "output_tokens is 'x'"),
        ("5,5,soon", "arrival_s is 'soon'"),
        ("-5,5,1", "prompt_tokens is '-5'"),
    ],
)
def test_a_malformed_row_is_refused_by_its_number(row: str, complaint: str, tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", f"prompt_tokens,output_tokens,arrival_s\n1,1,0\n{row}\n")
    with pytest.raises(BadInput) as error:
        requests.check(experiment(path))
    assert f"{path}:3: {complaint}" in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("t.txt", b"1 2", "must end in .jsonl or .csv"),
        ("t.csv", b"", "holds no requests"),
        ("t.jsonl", b"\n\n", "holds no requests"),
        ("t.jsonl", b"\xff\xfe", "cannot be read as text"),
        ("t.csv", b"a,b\n1,2\n", "prompt_tokens is None"),
        ("t.csv", b"prompt_tokens,output_tokens\n" + b"1" * 2**18, "cannot be read as text"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(
    name: str, content: bytes, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput) as error:
        requests.check(experiment(tmp_path / name))
    assert complaint in str(error.value)


def test_more_requests_or_tokens_than_can_be_served_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MAX_REQUESTS", 5)
    monkeypatch.setattr(traces, "MAX_TOKENS", 9)
    lines = "prompt_tokens,output_tokens\n" + "1,1\n" * 6
    path = written(tmp_path / "t.csv", lines + "malformed\n")  # beyond the rows that are read
    at_once = "workload.arrival=all_at_once"
    with pytest.raises(BadInput, match=r"holds more than 5 requests; take the first ones"):
        requests.check(experiment(path, at_once))
    with pytest.raises(BadInput, match=r"first 5 requests have 10 tokens, but at most 9"):
        requests.check(experiment(path, at_once, "workload.num_requests=5"))
    assert len(requests.build(experiment(path, at_once, "workload.num_requests=4"))) == 4


def test_a_file_that_is_absent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no file .*none.csv'; it must name a trace"):
        experiment(tmp_path / "none.csv")


def test_a_request_beyond_the_engines_context_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "prompt_tokens,output_tokens,arrival_s\n9,9,0\n1000,25,1\n")
    with pytest.raises(BadInput) as error:
        requests.check(experiment(path))
    assert f"request 1 of {path} has 1000 prompt and 25 output tokens" in str(error.value)
    assert "engine.max_model_len is 1024" in str(error.value)


def test_many_experiments_read_the_file_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "t.csv", CSV)
    opened: list[Path] = []
    read = traces._csv_lines

    def noting_lines(p: Path) -> Iterator[Any]:
        opened.append(p)
        return read(p)

    monkeypatch.setattr(traces, "_csv_lines", noting_lines)
    planned = experiment(path)
    for seed in range(20):
        requests.check(planned.model_copy(update={"seed": seed}))
        requests.build(planned.model_copy(update={"seed": seed}))
    assert opened == [path]
    written(path, CSV + "4,4,99\n")
    assert len(requests.build(experiment(path))) == 4
    assert opened == [path, path]


def jsonl(path: Path, times: list[Any], **more: Any) -> Path:
    """A trace with these timestamps, in the form that both `trace` and `mooncake` read."""
    rows = (
        {"timestamp": time, "input_length": 5, "output_length": 5, "hash_ids": [0], **more}
        for time in times
    )
    return written(path, "".join(json.dumps(row) + "\n" for row in rows))


def arrivals(workload: str, path: Path, *overrides: str) -> list[float | None]:
    words = [f"workload={workload}", f"workload.path='{path}'", *overrides]
    (planned,) = expand(None, words, CONFIG).experiments
    requests.check(planned.experiment)
    return [request.arrival_s for request in requests.build(planned.experiment)]


both = pytest.mark.parametrize("workload", ["trace", "mooncake"])

# Times of a file, other keys of its rows, the line that is named, and what the sentence says of it.
AMBIGUOUS: list[tuple[list[Any], dict[str, Any], int, str]] = [
    ([0.0, 61.114, 61.2], {}, 2, "timestamp is 61.114, which is no whole number"),
    ([0, 3000, 6000.5], {}, 3, "timestamp is 6000.5, which is no whole number"),
    ([0, 61, 61, 95], {}, 4, "timestamp is 95, and half of the different times lie 47.5 or less"),
    ([*range(9), 2000], {}, 10, "half of the different times lie 1 or less apart"),
    ([1_700_000_000, 1_700_000_500, 1_700_001_500], {}, 3, "or seconds since 1970"),
    ([0, 500, 9000], {"chat_id": 3}, 1, "timestamp is 0, beside chat_id"),
    ([0], {"parent_chat_id": -1}, 1, "Qwen-Bailian traces, whose times are in seconds"),
]


@both
@pytest.mark.parametrize(("times", "more", "line", "said"), AMBIGUOUS)
def test_times_that_may_be_seconds_are_refused_until_their_unit_is_said(
    workload: str, times: list[Any], more: dict[str, Any], line: int, said: str, tmp_path: Path
) -> None:
    path = jsonl(tmp_path / "t.jsonl", times, **more)
    with pytest.raises(BadInput) as error:
        arrivals(workload, path)
    sentence = str(error.value)
    assert sentence.startswith(f"{path}:{line}: ")
    assert said in sentence
    assert "workload.time_unit=ms or workload.time_unit=s" in sentence
    for unit, per_second in (("s", 1), ("ms", 1000)):
        result = arrivals(workload, path, f"workload.time_unit={unit}")
        assert result == pytest.approx([(time - times[0]) / per_second for time in times])


@both
def test_times_of_years_are_refused(workload: str, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "t.jsonl", [0, 61_114_000_000, 95_500_000_000])
    with pytest.raises(BadInput, match=r":3: timestamp .* 1,105 days after the first if they are"):
        arrivals(workload, path)


def test_a_time_in_quotes_is_looked_at_as_it_is_read(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "t.jsonl", ["0", "61.114", "61.2"])
    with pytest.raises(BadInput, match=r":2: timestamp is 61.114, which is no whole number"):
        arrivals("trace", path)


@both
@pytest.mark.parametrize(
    ("times", "more"),
    [
        ([27000, 30000, 30500], {}),
        ([0.0, 3000.0], {}),  # whole, however they are written
        ([0, 0, 0, 100, 100, 100], {}),  # a burst, and a burst
        ([1_700_000_000_000, 1_700_000_001_000], {}),
        ([5, 5, 5], {}),  # at once in any unit
        ([0.0, 0.125, 3.5], {"arrival_pass": 0}),  # as `kvscope replay` writes them
    ],
)
def test_times_that_are_milliseconds_need_no_word(
    workload: str, times: list[Any], more: dict[str, Any], tmp_path: Path
) -> None:
    path = jsonl(tmp_path / "t.jsonl", times, **more)
    assert arrivals(workload, path) == pytest.approx([(t - times[0]) / 1000 for t in times])


@both
def test_times_that_are_not_read_may_be_in_any_unit(workload: str, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "t.jsonl", [0.0, 61.114, 61.2])
    at_once = "workload.arrival=all_at_once"
    assert arrivals(workload, path, at_once) == [0.0, 0.0, 0.0]
    with pytest.raises(BadInput, match=r"workload.time_unit \(s\) has no meaning with workload"):
        arrivals(workload, path, at_once, "workload.time_unit=s")


def test_a_csv_says_its_unit_in_its_header(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", CSV)
    with pytest.raises(BadInput, match=r"workload.time_unit \(s\) must be null with a .csv"):
        experiment(path, "workload.time_unit=s")
