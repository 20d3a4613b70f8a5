"""Diagnostics of Nsight Systems about its capture: one sentence, and all of them in a log."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvscope.base import limits
from kvscope.base.files import atomic_path
from kvscope.base.quantities import plural
from kvscope.base.reading import one_line
from kvscope.collect.nsys import schema
from kvscope.collect.nsys.export import NsysExport
from kvscope.tables.runfile import NSYS_LOG

_LOSS = re.compile(r"\b(lost|losing|dropped|discarded|incomplete|not all)\b", re.IGNORECASE)


@dataclass(frozen=True)
class _Message:
    """A message of Nsight Systems: when (ns), how severe (a code), and its text."""

    time_ns: int | None
    severity: int
    text: str

    @property
    def complains(self) -> bool:
        """Whether it is a warning or an error, or reports lost events."""
        return self.severity in schema.SEVERE or _LOSS.search(self.text) is not None

    @property
    def rank(self) -> int:
        """Severity for comparison: errors above warnings, warnings above all others."""
        return self.severity if self.severity in schema.SEVERE else 0

    @property
    def kind(self) -> str:
        """'error', 'warning' or 'message'."""
        return schema.SEVERE.get(self.severity, "message")


def write_log(export: NsysExport, out_dir: Path) -> list[str]:
    """Write the messages of the export into NSYS_LOG, if any is a complaint; one sentence of those.

    The sentence counts them, has the first line of the first of the most severe ones, and names the
    log.
    """
    complaints, worst = 0, None
    for message in _messages(export):
        if message.complains:
            complaints += 1
            worst = message if worst is None or message.rank > worst.rank else worst
    if worst is None:
        return []
    with (
        atomic_path(out_dir / NSYS_LOG) as path,
        path.open("w", encoding="utf-8", errors="replace") as file,
    ):
        file.writelines(_entry(message) for message in _messages(export))
    most = "" if complaints == 1 else ", the most severe"
    kind = "an error" if worst.kind == "error" else f"a {worst.kind}"
    line = one_line((worst.text.strip().splitlines() or [""])[0])
    return [
        f"Nsight Systems has {plural(complaints, 'complaint')}{most} {kind}: {line} "
        f"(all of them in {NSYS_LOG}, beside the tables)."
    ]


def _messages(export: NsysExport) -> Iterator[_Message]:
    """The messages in order of time; none of a version that has no table of them."""
    table = schema.DIAGNOSTICS
    read = ("severity", "text", "timestamp")
    if not export.columns(table).keys() >= {*read}:
        return
    text = f"substr(CAST(COALESCE(text, '') AS TEXT), 1, {limits.LONGEST_LOGGED})"
    number = "CASE WHEN typeof({0}) = 'integer' THEN {0} END".format
    sql = f"""SELECT {number("timestamp")}, {number("severity")}, {text}
              FROM {export.source(table, read, "rowid AS row")} ORDER BY timestamp, row"""
    for time_ns, severity, words in export.each(sql):
        yield _Message(time_ns, severity or 0, words)


def _entry(message: _Message) -> str:
    """The message with its time and severity; further lines of it are indented."""
    time = "?" if message.time_ns is None else f"{message.time_ns / 1e9:.6f} s"
    first, *rest = message.text.strip().splitlines() or [""]
    return "\n".join([f"{time} {message.kind}: {first}", *(f"    {line}" for line in rest), ""])
