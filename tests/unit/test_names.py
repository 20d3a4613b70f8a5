"""kvscope itself names no overflow policy and no action of a package."""

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvscope

from .test_judge import words_of

SOURCE = Path(kvscope.__file__).parent
PACKAGES = Path(__file__).parents[2] / "packages"
GROUPS = ("kvscope.overflow", "kvscope.action")

# What is not the policy's name: the memory of a pass, what PyTorch calls its functions, and keys of
# run.json, which have been written. The contents of a host pool are `activations`, another word.
ALLOWED = {
    "activation_block_bytes",
    "activation_blocks_total",
    "activation_bytes",
    "activation_bytes_per_token",
    "activation_function",
}


def registered() -> Iterator[str]:
    """The names that the packages of this repository register in these groups."""
    for file in PACKAGES.glob("*/pyproject.toml"):
        points = tomllib.loads(file.read_text("utf-8"))["project"].get("entry-points", {})
        for group in GROUPS:
            yield from points.get(group, {})


def named(name: str, text: str) -> bool:
    """Whether an identifier or a string has the name as a word: `adaptive_s`, 'IsAdaptive'."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower()
    return re.search(rf"(?<![a-z]){name}(?![a-z])", parted) is not None


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        ("overflow=adaptive", True),
        ("AdaptiveCost", True),
        ("toAdaptive", True),
        ("_ADAPTIVE", True),
        ("adaptively", False),
        ("nonadaptive", False),
    ],
)
def test_a_name_is_a_word_of_an_identifier_or_a_sentence(text: str, is_named: bool) -> None:
    assert named("adaptive", text) == is_named


def test_no_module_names_a_policy_of_a_package() -> None:
    names = {*registered()}
    assert {"activation", "adaptive"} <= names
    result: dict[str, set[str]] = defaultdict(set)
    for module in SOURCE.rglob("*.py"):
        for text in {*words_of(module)} - ALLOWED:
            if any(named(name, text) for name in names):
                result[module.relative_to(SOURCE).as_posix()].add(text)
    assert not result


def test_what_is_allowed_is_there() -> None:
    assert {*ALLOWED} <= {text for module in SOURCE.rglob("*.py") for text in words_of(module)}
