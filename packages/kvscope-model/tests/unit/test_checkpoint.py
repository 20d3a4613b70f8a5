"""Weights of a checkpoint are those that its files list, whatever config.json would give."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope_model.capacity import models
from kvscope_model.capacity.checkpoint import INDEX, Checkpoint, beside

CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "torch_dtype": "bfloat16"}
TENSORS: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "model.layers.0.weight": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]},
    "model.layers.1.scale": {"dtype": "F32", "shape": [2], "data_offsets": [64, 72]},
    "model.layers.1.packed": {"dtype": "I32", "shape": [4], "data_offsets": [72, 88]},
}


def written(file: Path, tensors: dict[str, Any] = TENSORS) -> None:
    """A file of safetensors without its tensors' bytes, which are not read."""
    header = json.dumps(tensors).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header)


def indexed(directory: Path, total: Any, *files: str) -> None:
    weights = {f"tensor{n}": file for n, file in enumerate(files)}
    index = {"metadata": {"total_size": total}, "weight_map": weights}
    (directory / INDEX).write_text(json.dumps(index))


def test_a_directory_without_weights_has_no_checkpoint(tmp_path: Path) -> None:
    assert beside(tmp_path, CONFIG) is None


def test_headers_say_numbers_and_packed_bytes(tmp_path: Path) -> None:
    written(tmp_path / "model.safetensors")
    written(tmp_path / "consolidated.safetensors")
    found = beside(tmp_path, CONFIG)
    assert found == Checkpoint(34, 16, "the headers of 1 file *.safetensors")
    assert found.weight_bytes(2) == 84


def test_layers_for_speculative_decoding_are_not_loaded(tmp_path: Path) -> None:
    more = {"model.layers.2.weight": {"dtype": "BF16", "shape": [99], "data_offsets": [88, 286]}}
    written(tmp_path / "model.safetensors", TENSORS | more)
    assert beside(tmp_path, CONFIG) == Checkpoint(34, 16, "the headers of 1 file *.safetensors")


def test_the_index_counts_where_files_are_missing(tmp_path: Path) -> None:
    indexed(tmp_path, 5000, "a.safetensors", "b.safetensors")
    written(tmp_path / "a.safetensors")
    assert beside(tmp_path, CONFIG) == Checkpoint(0, 5000, f"total_size of {INDEX}")
    half = beside(tmp_path, CONFIG | {"torch_dtype": "float32"})
    assert half is not None
    assert half.weight_bytes(2) == 2500
    written(tmp_path / "b.safetensors")
    assert beside(tmp_path, CONFIG) == Checkpoint(68, 32, "the headers of 2 files *.safetensors")


def test_a_model_s_checkpoint_lies_beside_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    written(tmp_path / "model.safetensors")
    assert models.checkpoint(str(tmp_path), CONFIG) == beside(tmp_path, CONFIG)
    assert models.checkpoint(str(tmp_path / "config.json"), CONFIG) == beside(tmp_path, CONFIG)
    assert models.checkpoint("llama-3.1-8b", CONFIG) is None


@pytest.mark.parametrize("total", ["much", 0, None])
def test_a_damaged_index_is_a_sentence(tmp_path: Path, total: Any) -> None:
    indexed(tmp_path, total, "a.safetensors")
    found = beside(tmp_path, CONFIG)
    assert found is not None
    note = found.note(2, 100)
    assert note.startswith(f"{tmp_path}: its weights cannot be read: ")
    assert note.endswith("; weights are counted from config.json")


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, (3).to_bytes(8, "little") + b"[1]"])
def test_a_damaged_file_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    found = beside(tmp_path, CONFIG)
    assert found is not None
    assert "cannot be read" in found.note(2, 100)


@pytest.mark.parametrize(
    ("counted", "told"), [(85, ""), (100, "16.0% less than"), (42, "100.0% more than")]
)
def test_a_count_that_differs_is_said(counted: int, told: str) -> None:
    note = Checkpoint(34, 16, "the files").note(2, counted)
    assert note.startswith("weights are those of the files: 0.00 GiB")
    assert told in note
    assert ("config.json" in note) is bool(told)
