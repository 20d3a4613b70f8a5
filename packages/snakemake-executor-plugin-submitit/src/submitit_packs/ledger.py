"""Ledger of the controller: packs and their members, written before anything else.

Lines of JSON are appended and synchronised; a last line that a killed controller left unfinished
stands for something that was not yet done, and is ignored.

    {"pack": ID, "members": {KEY: TRY, …}}    the pack is about to be planned and submitted
    {"reported": {KEY: END, …}}               these members' ends were passed on

An end repeats what the member's own file says, so that a look at a campaign reads this one file for
all that is over.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from submitit_packs.directory import PackDirectory, Result
from submitit_packs.model import Member

LEDGER = "ledger.jsonl"


@dataclass(frozen=True)
class End:
    """End of a member: the pack it was in, the reason in one line, and its result, if any."""

    pack: str
    ok: bool
    reason: str = ""
    result: Result | None = None


@dataclass(frozen=True)
class Place:
    """The pack in which a member is, and how often it was packed before."""

    pack: str
    tries: int


class Ledger:
    """The ledger of a directory of packs."""

    def __init__(self, root: Path) -> None:
        self.path = root / LEDGER
        self.places: dict[str, Place] = {}
        self.packs: list[str] = []
        self.ends: dict[str, End] = {}  # of members that are in no pack now
        self.recovered: list[str] = []  # packs that the file should name, and does not
        self._read()
        self._recover()

    def _read(self) -> None:
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                if "pack" in entry:
                    self._note(entry["pack"], entry["members"])
                for key, plain in entry.get("reported", {}).items():
                    self.places.pop(key, None)
                    self.ends[key] = _end(plain)
            except (AttributeError, KeyError, TypeError, ValueError):
                continue

    def _recover(self) -> None:
        """Take what a damaged file lacks from the packs' directories.

        A plan is written after its line here, so a plan without a line is a line that was lost.
        """
        packs, root = set(self.packs), self.path.parent
        lost = [PackDirectory(p) for p in root.glob("pack-*") if p.name not in packs]
        for directory in sorted(lost, key=lambda d: d.planned_s):
            if pack := directory.plan():
                self._note(pack.id, {m.key: 0 for m in pack.members if self._is_left(directory, m)})
                self.recovered.append(pack.id)

    def _is_left(self, directory: PackDirectory, member: Member) -> bool:
        """True if a member's end is still to be reported, as far as the directory shows."""
        result = directory.result(member.key)
        is_over = directory.is_closed or (result is not None and result.is_final)
        return not is_over and member.key not in self.places

    def mend(self) -> None:
        """Write the lines that were lost."""
        for pack in self.recovered:
            members = {key: p.tries for key, p in self.places.items() if p.pack == pack}
            self._append({"pack": pack, "members": members})
        self.recovered = []

    def _note(self, pack: str, members: Mapping[str, int]) -> None:
        self.packs.append(pack)
        for key in members:
            self.ends.pop(key, None)
        self.places.update({key: Place(pack, tries) for key, tries in members.items()})

    def reserve(self, pack: str, members: Mapping[str, int]) -> None:
        """Say that a pack is about to be submitted with these members and their tries."""
        self._append({"pack": pack, "members": dict(members)})
        self._note(pack, members)

    def report(self, ends: Mapping[str, tuple[bool, str, Result | None]]) -> None:
        """Say that these members' ends were reported: whether well, why, and their results."""
        reported = {
            key: End(self.places[key].pack, *end) for key, end in ends.items() if key in self.places
        }
        if reported:
            self._append({"reported": {key: asdict(end) for key, end in reported.items()}})
            for key in reported:
                del self.places[key]
            self.ends |= reported

    def _append(self, entry: object) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            if file.tell() and not _ends_with_newline(self.path):
                file.write(b"\n")  # after a line that a killed controller left unfinished
            file.write(json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _end(plain: dict[str, Any]) -> End:
    result = plain["result"]
    return End(**{**plain, "result": Result.from_json(result) if result else None})


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
