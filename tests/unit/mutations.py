"""Damage of files in transit, and contents that careless or hostile programs write.

Each reader has the same property: of whatever these strategies make of a sound file it gives a
sound value, or raises BadInput in one sentence.
"""

import copy
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from kvscope.base.errors import BadInput

Json = Any

HUGE = [2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**61, 2**62, 2**63 - 1, 2**63, 10**30]
WHOLE_NUMBERS = st.sampled_from([*range(-2, 6), *HUGE, *(-number for number in HUGE)])
NUMBERS = WHOLE_NUMBERS | st.sampled_from([0.5, -0.0, 1e18, 1e308, -1e308])
NOT_FINITE = st.sampled_from([float("nan"), float("inf"), -float("inf")])
WORDS = st.sampled_from(["", "12", "x" * 5000, "é\n\x00", "NaN"]) | st.text(max_size=5)
OTHERS: st.SearchStrategy[Json] = st.sampled_from(
    [None, True, False, [], {}, [[]], [None], {"": 0}, [1] * 50]
)
VALUES = NUMBERS | WORDS | OTHERS
"""Wrong values for a place in JSON."""


@st.composite
def damaged(draw: st.DrawFn, intact: bytes) -> bytes:
    """The bytes with some bits flipped, a run cut out, inserted or repeated, or the end missing."""
    content = bytearray(intact)
    for _ in range(draw(st.integers(1, 3))):
        first, second = sorted(draw(st.integers(0, len(content))) for _ in range(2))
        match draw(st.sampled_from(["flip", "flip", "cut", "insert", "repeat", "end"])):
            case "flip" if first < len(content):
                content[first] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del content[first : min(second, first + 64)]
            case "insert":
                content[first:first] = draw(st.binary(min_size=1, max_size=64))
            case "repeat":
                content[first:first] = content[first : min(second, first + 64)]
            case "end":
                del content[second:]
    return bytes(content)


@st.composite
def shuffled(draw: st.DrawFn, lines: list[str]) -> list[str]:
    """The lines with some of them swapped, doubled, left out or cut."""
    lines = list(lines)
    for _ in range(draw(st.integers(1, 3))):
        one, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        match draw(st.sampled_from(["swap", "double", "leave out", "cut"])):
            case "swap":
                lines[one], lines[other] = lines[other], lines[one]
            case "double":
                lines.insert(one, lines[other])
            case "leave out" if len(lines) > 1:
                del lines[one]
            case "cut":
                lines[one] = lines[one][: draw(st.integers(0, len(lines[one])))]
    return lines


@st.composite
def altered(draw: st.DrawFn, value: Json, values: st.SearchStrategy[Any] = VALUES) -> Json:
    """The value with some parts of it replaced, left out or doubled, or with something added."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 2))):
        containers = list(_containers(value))
        if not containers:
            return copy.deepcopy(draw(values))
        container = draw(st.sampled_from(containers))
        keys = list(container) if isinstance(container, dict) else list(range(len(container)))
        if not keys or draw(st.integers(0, 9)) == 0:
            _add(container, draw(st.text(max_size=3)), copy.deepcopy(draw(values)))
            continue
        key = draw(st.sampled_from(keys))
        match draw(st.sampled_from(["replace", "replace", "replace", "leave out", "double"])):
            case "replace":
                container[key] = copy.deepcopy(draw(values))
            case "leave out":
                del container[key]
            case "double":
                _add(container, f"{key} again", copy.deepcopy(container[key]))
    return value


def _containers(value: Json, most: int = 8) -> Iterator[Json]:
    """Every list and object in the value; in long lists, only the containers of the first
    elements."""
    if isinstance(value, dict | list):
        yield value
        for part in [*value.values()] if isinstance(value, dict) else value[:most]:
            yield from _containers(part)


def _add(container: Json, key: str, value: Json) -> None:
    if isinstance(container, dict):
        container[key] = value
    else:
        container.append(value)


def altered_json(value: Json) -> st.SearchStrategy[bytes]:
    """JSON of the value, altered."""
    return altered(value).map(lambda found: json.dumps(found).encode())


def altered_lines(rows: list[Json]) -> st.SearchStrategy[bytes]:
    """JSON of altered rows, one a line; or of the rows in another order."""
    lines = [json.dumps(row) for row in rows]
    return altered(rows).map(json_lines) | shuffled(lines).map(lambda found: joined(*found))


def json_lines(rows: Json) -> bytes:
    """JSON of each row, a line each; also of values that are not lists of rows."""
    return joined(*map(json.dumps, rows if isinstance(rows, list) else [rows]))


def joined(*lines: str) -> bytes:
    """The lines of a file."""
    return "".join(line + "\n" for line in lines).encode()


def nested(depth: int) -> str:
    """JSON of lists in lists."""
    return "[" * depth + "]" * depth


def is_a_sentence(refusal: BadInput, *files: Path) -> None:
    """Assert that a refusal is one line of bounded length that names one of the files, if any."""
    message = str(refusal)
    assert not files or any(file.name in message for file in files)
    assert "\n" not in message
    assert len(message) < 1500  # some list the keys that are known


@dataclass(frozen=True, repr=False)
class FileKind:
    """A kind of file: its name, sound contents, and a reader of it.

    `read` gives the file's value, having asserted what holds of every one, or raises BadInput.
    `altered` gives what programs may write instead; `beside` are contents of other files, by name.
    """

    name: str
    sound: bytes
    read: Callable[[Path], Any]
    altered: tuple[st.SearchStrategy[bytes], ...] = ()
    beside: Mapping[str, bytes] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.name

    @property
    def contents(self) -> st.SearchStrategy[bytes]:
        """Possible contents of a file of the kind."""
        return st.one_of(damaged(self.sound), *self.altered)

    def refusal(self, content: bytes) -> str | None:
        """The sentence that refuses a file with this content; None if it is read."""
        with tempfile.TemporaryDirectory() as folder:
            for name, other in {**self.beside, self.name: content}.items():
                (Path(folder) / name).write_bytes(other)
            return refusal(self.read, Path(folder) / self.name, *map(Path, self.beside))

    def refusal_of_no_file(self, make: Callable[[Path], Any], folder: Path) -> str | None:
        """The sentence that refuses what `make` puts into the folder in the file's place."""
        for name, content in self.beside.items():
            (folder / name).write_bytes(content)
        make(folder / self.name)
        return refusal(self.read, folder / self.name)

    def refusal_by_a_link(self, folder: Path) -> str | None:
        """The sentence that refuses a link in the folder to a sound file; None if it is read."""
        (folder / "elsewhere").write_bytes(self.sound)
        return self.refusal_of_no_file(lambda path: path.symlink_to("elsewhere"), folder)


def refusal(read: Callable[[Path], Any], path: Path, *beside: Path) -> str | None:
    """The sentence in which a reader refuses a file, or one beside it; None if all is read."""
    try:
        read(path)
    except BadInput as error:
        is_a_sentence(error, path, *beside)
        return str(error)
    return None


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


NO_FILES: list[Callable[[Path], Any]] = [Path.mkdir, os.mkfifo, link_to_itself, link_to_a_device]
