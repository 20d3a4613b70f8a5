"""Errors of vLLM and its libraries are whole sentences that name value, expectation and place."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from kvscope.engine.vllm.reasons import reason

NO_BACKEND = (
    "No valid attention backend found for cuda with AttentionSelectorConfig(head_size=7, "
    "dtype=torch.bfloat16, kv_cache_dtype=auto, use_mla=False). Reasons: {FLASH_ATTN: [head_size "
    "not supported], FLEX_ATTENTION: [head_size not supported, partial blocks (8, 16) not "
    "supported]}."
)


class Settings(BaseModel):
    """Settings as vLLM's are."""

    block_size: int = Field(16, gt=0)
    method: str = ""

    @field_validator("method")
    @classmethod
    def is_known(cls, method: str) -> str:
        if method:
            raise ValueError(f"Unknown method {method}.\nTry pip install methods.")
        return method


def refused(**values: Any) -> ValidationError:
    with pytest.raises(ValidationError) as error:
        Settings(**values)
    return error.value


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (refused(block_size=0), "block_size is 0: Input should be greater than 0"),
        (refused(block_size="x"), "block_size is 'x': Input should be a valid integer"),
        (refused(method="m"), "method is 'm': Unknown method m."),
        (ValueError(NO_BACKEND), "head_size not supported (FLASH_ATTN, FLEX_ATTENTION); partial"),
        (KeyError("Reasoning parser 'x' not found. Use y"), "Reasoning parser 'x' not found."),
        (
            ImportError("Failed to import Ray: No module named 'ray'.Please `pip install ray`."),
            "Failed to import Ray: No module named 'ray'.",
        ),
        (OSError("We cannot reach a.\nSee https://a.b for help."), "We cannot reach a."),
        (ValueError("Faults of field 'a':\n    TypeError: an int is expected"), "field 'a': TypeE"),
        (ValueError("Models ['a'] are not known. Known are: [" + "'b', " * 99 + "'c']"), "known."),
    ],
)
def test_errors_are_their_first_sentences(error: Exception, told: str) -> None:
    assert told in reason(error)
    assert "\n" not in reason(error)
    assert not any(word in reason(error) for word in ("pip", "http", "'b'", "AttentionSelector"))


def test_a_long_list_ends_within_its_sentence() -> None:
    said = reason(ValueError("Methods must be one of [" + ", ".join(map(str, range(300))) + "]."))
    assert said == "Methods must be one of [0, 1, 2, and 297 more]."


@pytest.fixture
def model(tmp_path: Path) -> ModuleType:
    """A module as vLLM has one for a model."""
    file = tmp_path / "site-packages" / "vllm" / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "class LlamaConfig:\n    heads = 0\n\n\n"
        "def made(config):\n    return config.hidden_size\n\n\n"
        "def checked(config):\n    assert (\n        config.heads > 0\n    )\n\n\n"
        "def divided(config):\n    return 3 // config.heads\n"
    )
    spec = importlib.util.spec_from_file_location("model_of_vllm", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def told(function: Callable[..., Any], *given: Any) -> str:
    try:
        function(*given)
    except Exception as error:
        return reason(error)
    pytest.fail("it raised nothing")


def test_errors_that_nobody_worded_name_the_value_and_the_code(model: ModuleType) -> None:
    config = model.LlamaConfig()
    assert told(model.made, config) == (
        "its config.json has no hidden_size, which vLLM reads (vllm/model.py, line 6)"
    )
    assert told(model.checked, config) == (
        "vLLM requires `config.heads > 0` (vllm/model.py, line 11)"
    )
    assert told(model.divided, config) == (
        "a value of its config.json or of the arguments is missing or cannot be used in `return 3 "
        "// config.heads` (vllm/model.py, line 16; ZeroDivisionError: integer division or modulo "
        "by zero)"
    )
