"""YAML documents are read as they were meant; anything else is refused soon in one sentence."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvscope.base.errors import BadInput
from kvscope.plan import documents

pytestmark = pytest.mark.thorough


def read(content: bytes | str, directory: Path) -> Any:
    path = directory / "document.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return documents.load(path)


def refusal(content: bytes | str, directory: Path) -> str:
    """The one sentence that the document is refused with."""
    with pytest.raises(BadInput) as error:
        read(content, directory)
    sentence = str(error.value)
    assert sentence.isprintable()
    assert "document.yaml" in sentence
    return sentence


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
KEYS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | TEXT
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(deadline=None)
@given(value=PLAIN)
@example(value="12:30")
@example(value="2024-01-01")
@example(value={"on": "off", "<<": "=", "1": "1e3", "~": "null"})
def test_what_is_written_is_read_again(value: Any, tmp_path_factory: Any) -> None:
    directory = tmp_path_factory.getbasetemp()
    assert read(documents.dump(value), directory) == value


@pytest.mark.parametrize("text", ["2024-01-01", "2001-13-45", "2024-01-01 12:00:00"])
def test_a_date_is_text(text: str, tmp_path: Path) -> None:
    assert read(f"a: {text}", tmp_path) == {"a": text}


def test_numbers_are_read_as_people_write_them(tmp_path: Path) -> None:
    assert read("[1e-3, 5E2, 0x10, 7, 1_000, -0.5]", tmp_path) == [1e-3, 500.0, 16, 7, 1000, -0.5]


def test_an_empty_document_is_null_and_no_mapping(tmp_path: Path) -> None:
    assert read("# nothing\n", tmp_path) is None
    with pytest.raises(BadInput, match="must hold 'key: value' lines"):
        documents.load_mapping(tmp_path / "document.yaml")


def test_a_part_that_is_shared_is_there_in_full_and_may_be_changed(tmp_path: Path) -> None:
    text = """
    outer: {inner: &base {<<: &low {k: 1, l: 1}, k: 2}}
    other: {<<: [*base, *low], m: 3}
    again: *base
    """
    assert read(text, tmp_path) == {
        "outer": {"inner": {"k": 2, "l": 1}},
        "other": {"k": 2, "l": 1, "m": 3},
        "again": {"k": 2, "l": 1},
    }


def bomb(levels: int, aliases: int, opening: str, closing: str) -> str:
    """Each level holds the level above it several times."""
    lines = ["a0: &a0 {k: 1}"]
    for level in range(1, levels):
        above = ", ".join([f"*a{level - 1}"] * aliases)
        lines.append(f"a{level}: &a{level} {opening}{above}{closing}")
    return "\n".join(lines)


# A document, and what the sentence must say of it.
HOSTILE: dict[str, tuple[bytes | str, str]] = {
    "list as key": ("? [a, b]\n: c", "document.yaml:1: not valid YAML: a key must be text"),
    "mapping as key": ("{? {b: c} : d}", "a key must be text"),
    "alias as key": ("a: &a x\n*a : c", "document.yaml:2: not valid YAML: a key must be text"),
    "number as key": ("a:\n  1: b", "2: not valid YAML: key '1' must be text; put it in quotes"),
    "truth as key": ("on: a", "key 'on' must be text; put it in quotes"),
    "null as key": ("~ : a", "key '~' must be text"),
    "control character in a key": ('"a\\nb": 1', "must be a line of at most 200"),
    "long key": ("k" * 201 + ": 1", "must be a line of at most 200"),
    "key twice": ("a: 1\nb: {c: 1,\n c: 2}", "document.yaml:3: not valid YAML: key 'c' is given"),
    "merge twice": ("{<<: {a: 1}, <<: {b: 1}}", "key '<<' is given twice"),
    "merge of a number": ("<<: 3", "not valid YAML"),
    "brackets": ("[" * 200_000, "nested more than 50 levels deep"),
    "braces": ("{a: " * 200_000, "nested more than 50 levels deep"),
    "dashes": ("- " * 200_000, "nested more than 50 levels deep"),
    "question marks": ("? " * 200_000, "must be text"),
    "indentation": ("\n".join(" " * i + "a:" for i in range(500)), "nested more than 50"),
    "depth by aliases": (bomb(60, 1, "[", "]"), "nested more than 50 levels deep"),
    "laughs": (bomb(40, 2, "[", "]"), "more than 200,000 values"),
    "merges": (bomb(40, 2, "{<<: [", "]}"), "more than 200,000 values"),
    "many values": ("[" + "1," * 200_001 + "]", "more than 200,000 values"),
    "many keys": ("\n".join(f"k{i}: 1" for i in range(100_001)), "more than 200,000 values"),
    "list in itself": ("a: &a [*a]", "alias '*a' must follow the value it repeats"),
    "list in itself, anchored before": ("a: &a 1\nb: &a [*a]", "not valid YAML"),
    "mapping in itself": ("&a {<<: *a}", "alias '*a' must follow the value it repeats"),
    "undefined alias": ("a: *b", "alias '*b' must follow the value it repeats"),
    "huge file": (b"# " + b"x" * 2**23, "more than 8,388,608 bytes"),
    "digits": ("a: " + "9" * 5000, "a number of more than 400 digits"),
    "hexadecimal digits": ("a: 0x" + "f" * 5000, "a number of more than 400 digits"),
    "sexagesimal digits": ("a: 1" + ":1" * 500_000, "a number of more than 400 digits"),
    "no number": ("a: 0x_", "not valid YAML"),
    "tab": ("a:\n\tb: c", "document.yaml:2: not valid YAML"),
    "zero byte": ("a: \0", "not valid YAML"),
    "binary": (bytes(range(256)), "not valid YAML"),
    "latin-1": ("a: é".encode("latin-1"), "not valid YAML"),
    "half a file": ("a: [1, 2", "not valid YAML"),
    "two documents": ("--- a\n--- b", "not valid YAML"),
    "python object": ("a: !!python/object/apply:os.system [ls]", "tag"),
    "binary tag": ("a: !!binary ''", "tag"),
    "bool tag": ("a: !!bool maybe", "tag"),
    "float tag": ("a: !!float ''", "tag"),
    "set": ("!!set {a, b}", "tag"),
    "own tag": ("a: !mine {b: c}", "tag"),
    "version": ("%YAML 9.9\n---\na: b", "not valid YAML"),
    "equals sign": ("a: =", "not valid YAML"),
    "surrogate": ('a: "\\ud800"', "not valid YAML"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_documents_are_refused(name: str, tmp_path: Path) -> None:
    content, part = HOSTILE[name]
    assert part in refusal(content, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "[" * 49 + "1" + "]" * 49,
        bomb(49, 1, "[", "]"),
        "[" + "1," * 199_990 + "]",
        "a: 1" + "0" * 399,
        "k" * 200 + ": 1",
        "# " + "x" * (2**23 - 10),
    ],
    ids=["levels", "levels by aliases", "values", "digits", "key", "bytes"],
)
def test_values_within_the_bounds_are_read(text: str, tmp_path: Path) -> None:
    read(text, tmp_path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    reason = r"no such file|not a regular file|cannot be read|embedded null"
    for path in (tmp_path, tmp_path / "none.yaml", tmp_path / ("x" * 300), Path("a\0b")):
        with pytest.raises(BadInput, match=reason):
            documents.load(path)


PIECES = [
    *("a", "b: ", "- ", "[", "]", "{", "}", ", ", ": ", "? ", "&x ", "*x", "<<: ", "!!int ", "!y "),
    *("'", '"', "\n", "\n  ", "\t", "|\n", ">-\n", "#", "---\n", "...", "%YAML", "0x", "1:2"),
    *("9" * 401, "~", "on", ".nan", "2024-01-01", "=", "\0", "\ufeff", "é", "\u2028", "\\ud800"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join) | st.text() | st.binary())
def test_any_content_is_read_or_refused(tmp_path_factory: Any, content: str | bytes) -> None:
    if isinstance(content, str):
        content = content.encode(errors="surrogatepass")
    try:
        value = read(content, tmp_path_factory.getbasetemp())
    except BadInput as error:
        sentence = str(error)
    else:
        assert plain(value)
        sentence = ""
    assert sentence == "" or sentence.isprintable()


def plain(value: Any) -> bool:
    """Whether a value is made of what JSON has, keys being text."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(plain, value))
    return value is None or isinstance(value, str | bool | int | float)
