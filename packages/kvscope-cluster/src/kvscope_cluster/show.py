"""Table of a study's experiments on a cluster: waiting, running where, or ended how."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kvscope.api.plan import batches
from kvscope_cluster import packs_directory
from submitit_packs.directory import PackDirectory, Result, State
from submitit_packs.overview import QUEUED, RUNNING, MemberStatus, Overview, overview

STYLES = {"ok": "green", RUNNING: "cyan", "failed": "red", "timeout": "red"}
MOST_ROWS = 40
MINUTE_S = 60


@dataclass(frozen=True)
class Look:
    """State of a study's submitted experiments.

    `rows` are they by id, `labels` their names; `planned` counts the study's experiments.
    """

    found: Overview
    rows: Mapping[str, MemberStatus]
    labels: Mapping[str, str]
    planned: int

    @property
    def is_over(self) -> bool:
        """True if no experiment waits or runs."""
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
    packs = packs_directory(results)
    packs_overview = overview(packs)
    rows: dict[str, MemberStatus] = {}
    ours = []
    for pack in packs_overview.packs:
        of_pack: dict[str, MemberStatus] = {}
        for status in pack.members:
            if ids := batches.of_name(manifest, status.member.name):
                of_pack |= experiments_of_batch(status, ids, packs)
        rows |= of_pack
        if of_pack:
            ours.append(pack)
    return Look(Overview(tuple(ours), packs_overview.now_s), rows, labels, len(labels))


def experiments_of_batch(
    status: MemberStatus, ids: Sequence[str], packs: Path
) -> dict[str, MemberStatus]:
    """State of each experiment of a batch: its log has a line for each that has ended.

    Modeled ones run one after the other: the first of the others is at work.
    """
    begun = status.start_s is not None
    log = PackDirectory(packs / status.pack).log(status.member.key)
    ended = batches.ends(log.read_text(errors="replace")) if begun and log.is_file() else {}
    left = [id_ for id_ in ids if id_ not in ended]
    in_turn = batches.MODELED in status.member.name.split()
    rows = {}
    for id_ in ids:
        if id_ in ended:
            rows[id_] = _ended_in_batch(status, *ended[id_])
        elif in_turn and status.state == RUNNING and id_ != left[0]:
            rows[id_] = replace(status, state=QUEUED, start=None)
        else:
            rows[id_] = status
    return rows


def _ended_in_batch(status: MemberStatus, took_s: float, reason: str | None) -> MemberStatus:
    start_s = status.start_s or 0.0
    state, code = (State.OK, 0) if reason is None else (State.FAILED, 1)
    where = status.host, status.gpu, ()
    result = Result(state, code, *where, start_s, start_s + took_s, 0, reason or "")
    return replace(status, state=str(state), start=None, result=result, reason=reason or "")


def closing_line(packs_overview: Overview, rows: Mapping[str, MemberStatus], planned: int) -> str:
    """Number of experiments by state, the expected end of all, and their cost."""
    states = Counter(status.state for status in rows.values())
    parts = [
        f"{count} {state}" for state, count in sorted(states.items(), key=lambda s: _rank(s[0]))
    ]
    if outside := planned - len(rows):
        parts.append(f"{outside} not in packs")
    parts.append(f"{packs_overview.node_hours:.2f} node-hours used")
    if packs_overview.idle_share is not None:
        parts.append(f"{packs_overview.idle_share:.0%} of the slots idle")
    if states.keys() & {QUEUED, RUNNING}:
        left_s = packs_overview.left_s
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
