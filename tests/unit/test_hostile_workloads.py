"""Files of workloads, damaged or hostile: requests that can be served, or a sentence."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope import limits
from kvscope.errors import BadInput
from kvscope.files import sha256_of
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.workload import requests

from .mutations import altered, damaged, is_a_sentence, nested, shuffled
from .test_workload_sharegpt import FITTING, TOO_LONG, word_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

CONFIG = Path(__file__).parents[2] / "config"
JSON_ROWS = [
    {"timestamp": 27_000, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]},
    {"timestamp": 30_000, "input_length": 10, "output_length": 26},
    {"timestamp": 30_500, "input_length": 300, "output_length": 1},
]
CSV = "prompt_tokens,output_tokens,arrival_s\n600,52,27\n10,26,30\n300,1,30.5\n"
SHAREGPT = [*FITTING[:3], TOO_LONG]


def planned(name: str, **values: Any) -> Experiment:
    """An experiment of this workload whose file, for now any, is named later."""
    words = [f"workload.{key}={value}" for key, value in {"path": __file__, **values}.items()]
    return expand(None, [f"workload={name}", *words], CONFIG).experiments[0].experiment


TRACE = planned("trace")
CONVERSATIONS = planned("sharegpt", num_requests=2)


def of_file(experiment: Experiment, path: Path) -> Experiment:
    update = {"path": str(path), "sha256": sha256_of(path)}
    workload = experiment.workload.model_copy(update=update)
    return experiment.model_copy(update={"workload": workload})


def json_lines(rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def sound_or_refused(experiment: Experiment, name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        found = of_file(experiment, path)
        try:
            requests.check(found)
            built = requests.build(found)
        except BadInput as refusal:
            is_a_sentence(refusal, path)
            return
        assert built
        longest = found.engine.max_model_len
        assert all(len(r.prompt_token_ids) + r.output_tokens <= longest for r in built)
        assert all(len(r.prompt_token_ids) >= 1 and r.output_tokens >= 1 for r in built)
        arrivals = [request.arrival_s or 0 for request in built]
        assert arrivals == sorted(arrivals)
        assert 0 <= arrivals[-1] <= limits.LATEST_EPOCH_S


@given(damaged(json_lines(JSON_ROWS)))
@settings(deadline=None)
def test_a_damaged_trace(content: bytes) -> None:
    sound_or_refused(TRACE, "t.jsonl", content)


@given(altered(JSON_ROWS))
def test_a_trace_of_other_values(rows: Any) -> None:
    rows = rows if isinstance(rows, list) else [rows]
    sound_or_refused(TRACE, "t.jsonl", json_lines(rows))


@given(damaged(CSV.encode()))
@settings(deadline=None)
def test_a_damaged_table(content: bytes) -> None:
    sound_or_refused(TRACE, "t.csv", content)


@given(shuffled(CSV.splitlines()))
def test_a_table_in_another_order(lines: list[str]) -> None:
    sound_or_refused(TRACE, "t.csv", "\n".join(lines).encode())


@given(damaged(json.dumps(SHAREGPT).encode()))
@settings(deadline=None)
def test_damaged_conversations(content: bytes) -> None:
    sound_or_refused(CONVERSATIONS, "s.json", content)


@given(altered(SHAREGPT))
def test_conversations_of_other_values(value: Any) -> None:
    sound_or_refused(CONVERSATIONS, "s.json", json.dumps(value).encode())


def refusal(experiment: Experiment, path: Path) -> str:
    with pytest.raises(BadInput) as caught:
        requests.check(of_file(experiment, path))
    is_a_sentence(caught.value, path)
    return str(caught.value)


LINE = {"timestamp": 1, "input_length": 5, "output_length": 5}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (nested(200_000), "not a JSON object"),
        ('{"input_length": 1' + "0" * 5000 + "}", "not a JSON object"),
        (json.dumps(LINE | {"input_length": 10**12}), "input_length is 1000000000000"),
        (json.dumps(LINE | {"input_length": "9" * 5000}), "input_length is '999"),
        (json.dumps(LINE | {"timestamp": 10**400}), "timestamp is 1000"),
        (json.dumps(LINE | {"timestamp": 1e300}), "timestamp is 1e+300"),
        (json.dumps(LINE | {"timestamp": float("nan")}), "timestamp is nan"),
        (json.dumps(LINE | {"hash_ids": [1] * 10**6}), "longer than 1,048,576 bytes"),
    ],
)
def test_a_line_of_a_trace_that_no_engine_serves(tmp_path: Path, line: str, wrong: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(LINE) + "\n" + line + "\n")
    message = refusal(TRACE, path)
    assert f"{path}:2: " in message
    assert wrong in message


@pytest.mark.parametrize("cell", ["9" * 5000, "1e400", "nan", "x" * 200_000, "\0"])
def test_a_cell_that_is_no_number_one_can_use(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"prompt_tokens,output_tokens\n5,{cell}\n")
    refusal(TRACE, path)


def test_a_header_of_many_columns_costs_each_row_little(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,arrival_s" + "," * 10**6 + "\n" + "5,5,0\n" * 2000)
    assert len(requests.build(of_file(TRACE, path))) == 2000


@pytest.mark.parametrize("text", [nested(200_000), '[{"conversations": [{"value": null}, {}]}]'])
def test_conversations_of_another_shape(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    refusal(CONVERSATIONS, path)


# --- tokenizers


def tokenized(content: bytes, conversations: Path) -> list[Any]:
    """The requests whose lengths this tokenizer.json counts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_bytes(content)
        experiment = of_file(planned("sharegpt", num_requests=2, tokenizer=path), conversations)
        try:
            return requests.build(experiment)
        except BadInput as refusal:
            is_a_sentence(refusal, path)
            raise


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sharegpt") / "s.json"
    path.write_text(json.dumps(SHAREGPT))
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return word_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json").read_bytes()


MUTATIONS: dict[str, Callable[[bytes], st.SearchStrategy[bytes]]] = {
    "damaged": damaged,
    "altered": lambda content: altered(json.loads(content)).map(lambda v: json.dumps(v).encode()),
}


@pytest.mark.parametrize("how", MUTATIONS)
def test_a_tokenizer_of_anything(how: str, tokenizer: bytes, conversations: Path) -> None:
    @given(MUTATIONS[how](tokenizer))
    @settings(max_examples=10)
    def holds(content: bytes) -> None:
        try:
            built = tokenized(content, conversations)
        except BadInput:
            return
        assert all(len(request.prompt_token_ids) >= 1 for request in built)

    holds()


def test_a_tokenizer_that_does_not_take_the_texts(tokenizer: bytes, conversations: Path) -> None:
    without = json.loads(tokenizer)
    without["model"] |= {"vocab": {"word": 0}, "unk_token": "[UNK]"}
    with pytest.raises(BadInput, match=r"workload.tokenizer is .* must be a tokenizer.json"):
        tokenized(json.dumps(without).encode(), conversations)


def test_a_tokenizer_that_is_no_text(conversations: Path) -> None:
    with pytest.raises(BadInput, match=r"workload.tokenizer is .* must be a tokenizer.json"):
        tokenized(b"\xff\xfe", conversations)
