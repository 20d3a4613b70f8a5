"""How a study's packs stand, as a table: which experiment waits, runs where, or ended how."""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kvscope.layout import packs_directory
from submitit_packs.overview import QUEUED, RUNNING, MemberStatus, Overview, overview

STYLES = {"ok": "green", RUNNING: "cyan", "failed": "red", "timeout": "red"}
MOST_ROWS = 40
MINUTE_S = 60


@dataclass(frozen=True)
class Look:
    """How the experiments of a study stand that were submitted.

    `rows` are they by id, `labels` their names; `planned` counts the study's experiments.
    """

    found: Overview
    rows: Mapping[str, MemberStatus]
    labels: Mapping[str, str]
    planned: int

    @property
    def is_over(self) -> bool:
        """Whether none waits or runs."""
        return not any(status.state in (QUEUED, RUNNING) for status in self.rows.values())

    def table(self, all_rows: bool = False) -> Group:
        """A row an experiment, the most interesting ones first, and a line about all."""
        jobs = {pack.pack.id: pack.job_id or "" for pack in self.found.packs}
        grid = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("experiment", "state", "node", "GPU", "minutes", "job", "reason"):
            grid.add_column(heading, overflow="fold" if heading == "reason" else "ellipsis")
        ordered = sorted(self.rows.items(), key=lambda row: (_rank(row[1].state), row[0]))
        shown = ordered if all_rows else ordered[:MOST_ROWS]
        for id_, status in shown:
            grid.add_row(
                self.labels[id_],
                Text(status.state, style=STYLES.get(status.state, "")),
                status.host,
                status.gpu,
                _minutes(status, self.found.now_s),
                jobs[status.pack],
                status.reason,
            )
        left = len(ordered) - len(shown)
        more = [Text(f"… and {left} more (--all)")] if left else []
        return Group(grid, *more, Text(closing_line(self.found, self.rows, self.planned)))


def look(manifest: Mapping[str, Any], results: Path) -> Look:
    """Look once at the packs that hold an experiment of a study."""
    labels = {entry["id"]: entry["label"] for entry in manifest["experiments"]}
    found = overview(packs_directory(results))
    ids = [[experiment_of(m, labels) for m in pack.members] for pack in found.packs]
    ours = [(pack, of) for pack, of in zip(found.packs, ids, strict=True) if any(of)]
    rows = {
        id_: status
        for pack, of in ours
        for id_, status in zip(of, pack.members, strict=True)
        if id_
    }
    return Look(Overview(tuple(p for p, _ in ours), found.now_s), rows, labels, len(labels))


def experiment_of(status: MemberStatus, ids: Container[str]) -> str | None:
    """The experiment that a member runs: Snakemake's jobs have it in their names."""
    return next((word for word in status.member.name.split() if word in ids), None)


def closing_line(found: Overview, rows: Mapping[str, MemberStatus], planned: int) -> str:
    """How many are in which state, when all are expected to have ended, and what it costs."""
    states = Counter(status.state for status in rows.values())
    parts = [
        f"{count} {state}" for state, count in sorted(states.items(), key=lambda s: _rank(s[0]))
    ]
    if outside := planned - len(rows):
        parts.append(f"{outside} not in packs")
    parts.append(f"{found.node_hours:.2f} node-hours used")
    if found.idle_share is not None:
        parts.append(f"{found.idle_share:.0%} of the slots idle")
    if states.keys() & {QUEUED, RUNNING}:
        left_s = found.left_s
        when = "waiting for nodes"
        if left_s is not None:
            when = f"done in about {left_s / MINUTE_S:.0f} min"
        parts.append(when)
    return ", ".join(parts)


def _rank(state: str) -> int:
    order = (RUNNING, "failed", "timeout", "killed", "lost", "deferred", "not begun", QUEUED, "ok")
    return order.index(state) if state in order else 0


def _minutes(status: MemberStatus, now_s: float) -> str:
    return f"{status.busy_s(now_s) / MINUTE_S:.1f}" if status.start_s else ""
