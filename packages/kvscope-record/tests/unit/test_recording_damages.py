"""Kinds of damage to a recording's files: what is whole is read, and what is missing is said."""

import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvscope.cli.main import main
from kvscope_record.frames import frames
from kvscope_record.gaps import LOST
from kvscope_record.records import Ended, Sampled, Scheduled
from kvscope_record.replayed import SERVED
from kvscope_record.segments import segment_paths
from kvscope_record.window import Window, read_window

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import busy_server

SECONDS, SEGMENT_S = 24.0, 4.0
MIDDLE = 3  # of six segments
Files = list[Path]
Damage = Callable[[Files], None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording without damage."""
    directory = tmp_path_factory.mktemp("whole")
    busy_server.write(directory, SECONDS, SEGMENT_S)
    return directory


def changed(change: Callable[[bytearray], "bytes | bytearray | None"], *which: int) -> Damage:
    """The damage that a change of the content of some files does."""

    def damage(files: Files) -> None:
        for place in which:
            content = bytearray(files[place].read_bytes())
            result = change(content)
            files[place].write_bytes(content if result is None else result)

    return damage


def cut(share: float, *which: int) -> Damage:
    """Files that end after this share of their bytes."""
    return changed(lambda content: content[: int(share * len(content))], *which)


def flipped(*places: float, which: int = MIDDLE) -> Damage:
    """A file with a bit flipped at each of these places, shares of its bytes."""

    def flip(content: bytearray) -> None:
        for place in places:
            content[min(int(place * len(content)), len(content) - 1)] ^= 4

    return changed(flip, which)


def flipped_in_header(byte: int) -> Damage:
    """A file of which a bit of the third frame's header is flipped."""

    def damage(files: Files) -> None:
        content = bytearray(files[MIDDLE].read_bytes())
        content[[*frames(files[MIDDLE])][2].offset + byte] ^= 1
        files[MIDDLE].write_bytes(content)

    return damage


def removed(*which: int) -> Damage:
    """Files that are gone."""

    def damage(files: Files) -> None:
        for place in which:
            files[place].unlink()

    return damage


def exchanged(files: Files) -> None:
    """Two files have one another's names."""
    first, second = files[1].read_bytes(), files[MIDDLE].read_bytes()
    files[1].write_bytes(second)
    files[MIDDLE].write_bytes(first)


def copied(number: int) -> Damage:
    """A file is there again, under another number."""

    def damage(files: Files) -> None:
        shutil.copy(files[MIDDLE], files[0].parent / name(number))

    return damage


def with_an_empty_file(files: Files) -> None:
    (files[0].parent / name(91)).write_bytes(b"")


def name(number: int) -> str:
    return f"segment-{number:08d}.jsonl.zst"


def scattered(content: bytearray) -> None:
    """One byte in ten thousand is another one."""
    draw = random.Random(0)
    for _ in range(max(1, len(content) // 10_000)):
        content[draw.randrange(len(content) // 3, len(content))] ^= 255


def without_middle(content: bytearray) -> bytearray:
    third = len(content) // 3
    return content[:third] + content[2 * third :]


def with_zeros(content: bytearray) -> None:
    third = len(content) // 3
    content[third : third + 4096] = bytes(4096)


def with_garbage(content: bytearray) -> bytearray:
    half = len(content) // 2
    return content[:half] + random.Random(1).randbytes(5000) + content[half:]


def twice(content: bytearray) -> bytearray:
    return content + content


DAMAGES: dict[str, Damage] = {
    "none": lambda files: None,
    "cut at the start": cut(0.0, MIDDLE),
    "cut in the first frame": cut(0.01, MIDDLE),
    "cut at a quarter": cut(0.25, MIDDLE),
    "cut in half": cut(0.5, MIDDLE),
    "cut at three quarters": cut(0.75, MIDDLE),
    "cut before the end": cut(0.995, MIDDLE),
    "two files cut": cut(0.5, 1, MIDDLE),
    "the newest cut": cut(0.5, -1),
    "the newest cut in its first frame": cut(0.01, -1),
    "the first cut": cut(0.5, 0),
    "a bit flipped at a quarter": flipped(0.25),
    "a bit flipped in half": flipped(0.5),
    "the last bit flipped": flipped(1.0),
    "the first bit flipped": flipped(0.0),
    "a bit flipped in the first file": flipped(0.5, which=0),
    "a bit flipped in the newest file": flipped(0.5, which=-1),
    "two bits flipped": flipped(0.3, 0.8),
    "a magic number flipped": flipped_in_header(0),
    "a size flipped": flipped_in_header(5),
    "a tag flipped": flipped_in_header(9),
    "a frame's number flipped": flipped_in_header(24),
    "a frame's length flipped": flipped_in_header(28),
    "a checksum flipped": flipped_in_header(148),
    "bytes scattered": changed(scattered, MIDDLE),
    "a part removed": changed(without_middle, MIDDLE),
    "a part overwritten with zeros": changed(with_zeros, MIDDLE),
    "garbage in between": changed(with_garbage, MIDDLE),
    "garbage at the end": changed(lambda content: content + bytes(999), MIDDLE),
    "the content twice": changed(twice, MIDDLE),
    "nothing but garbage": changed(lambda content: random.Random(2).randbytes(3000), MIDDLE),
    "a segment lost": removed(MIDDLE),
    "two segments lost": removed(2, MIDDLE),
    "segments lost apart": removed(1, MIDDLE),
    "the oldest lost": removed(0),
    "the newest lost": removed(-1),
    "segments exchanged": exchanged,
    "a segment copied behind": copied(90),
    "an empty file": with_an_empty_file,
}


def passes_of(events: Iterator[object]) -> set[int]:
    """The passes that were scheduled and gave their tokens."""
    scheduled, sampled = set(), set()
    for event in events:
        if isinstance(event, Scheduled):
            scheduled.add(event.step)
        elif isinstance(event, Sampled):
            sampled.add(event.step)
    return scheduled & sampled


def left_passes(whole: Path, files: Files) -> set[int]:
    """The passes of all frames whose bytes are somewhere in files."""
    contents = [path.read_bytes() for path in files]
    return passes_of(
        event
        for path in segment_paths(whole)
        for frame in frames(path)
        if any(path.read_bytes()[frame.offset : frame.after] in content for content in contents)
        for event in frame.events() or ()
    )


def ends(window: Window) -> dict[int, str]:
    return {e.request: e.status for e in window.events if isinstance(e, Ended)}


@pytest.mark.parametrize("kind", DAMAGES)
def test_what_is_whole_is_read_and_what_is_missing_is_said(
    kind: str, whole: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "recording"
    shutil.copytree(whole, directory)
    DAMAGES[kind](segment_paths(directory))
    window = read_window(directory)
    got = passes_of(iter(window.events))
    left = left_passes(whole, segment_paths(directory))
    assert len(got & left) >= 0.9 * len(left)
    every = set(range(min(got), max(got) + 1))
    said = {step for gap in window.gaps for step in range(gap.first_step, gap.next_step)}
    assert every - got <= said
    assert all(gap.sentence in window.notes for gap in window.gaps)
    assert bool(every - got) == any("missing" in gap.sentence for gap in window.gaps)
    if min(got):
        assert any(f"passes before {min(got)} are not" in note for note in window.notes)
    before = ends(read_window(whole))
    wrong = {r: s for r, s in ends(window).items() if s not in SERVED and before[r] in SERVED}
    assert set(wrong.values()) <= {LOST}
    if wrong:
        assert any(f"how {len(wrong)} ended is missing" in note for note in window.notes)


def test_a_damaged_recording_is_collected_and_its_check_fails(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "recording"
    shutil.copytree(whole, directory)
    DAMAGES["a bit flipped in half"](segment_paths(directory))
    assert main(["collect", str(directory)]) == 0
    sentence = "are missing: segment-00000004.jsonl.zst is damaged at byte"
    assert sentence in capsys.readouterr().err
    assert main(["check", str(directory), "--brief"]) == 1
    assert sentence in capsys.readouterr().err
