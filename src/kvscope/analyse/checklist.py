"""The checklist of a run: the verdict of every oracle on what it recorded."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvscope import accounts
from kvscope.accounts import COLLECTED
from kvscope.analyse.oracles.of_engine import ORACLES_OF_ENGINE
from kvscope.analyse.oracles.registry import ORACLES, ROWS, judge_tables
from kvscope.analyse.records import Records
from kvscope.collect.kv.flushes import read_flushes
from kvscope.collect.oracles.judge import Judge
from kvscope.collect.oracles.judge import judged as judged_events
from kvscope.collect.oracles.registry import ALL_ORACLES, verdicts
from kvscope.oracle import HELD, NOT_APPLICABLE, VIOLATED, Oracle, Verdict, judge
from kvscope.results import Run
from kvscope.runfile import COMPLETE, KERNEL_EVENTS, TRACING
from kvscope.tables import KV_EVENTS

EVERY_ORACLE: tuple[Oracle[Any], ...] = (*ROWS, *ORACLES, *ORACLES_OF_ENGINE, *ALL_ORACLES)


def checklist(records: Records, collected: bool = False) -> list[Verdict]:
    """The verdicts on a complete run; none on one that failed.

    Those on its KV events are as collect.json has them if it is `collected`, or found again in the
    raw file. Raises BadInput if that is not there, damaged, or made from another measurement.
    """
    if records.facts["status"] != COMPLETE:
        return []
    found = judge_tables(records) + judge(ORACLES_OF_ENGINE, records.facts)
    return found + verdicts(_of_events(records, collected))


def _of_events(run: Run, collected: bool) -> dict[str, Any]:
    """What the oracles of KV events found; empty where there are no events."""
    if TRACING not in run.facts:
        return {}
    if not collected:
        return judged_events(read_flushes(run.directory / KERNEL_EVENTS), Judge.of_run(run))
    account = run.account(COLLECTED)
    accounts.require_unchanged(run.tables_directory, account, KV_EVENTS.file)
    found: dict[str, Any] = account["kv_events"]["oracles"]
    return found


def counted(found: Sequence[Verdict]) -> str:
    """How many oracles held, were violated, and did not apply."""
    states = Counter(verdict.state for verdict in found)
    return ", ".join(f"{states[state]} {state}" for state in (HELD, VIOLATED, NOT_APPLICABLE))


def lines(found: Sequence[Verdict]) -> list[str]:
    """Every verdict as a line: the state, the oracle and its sentence, or what it would need."""
    width = max(len(verdict.name) for verdict in found)
    return [
        f"  {verdict.state:<{len(NOT_APPLICABLE)}}  {verdict.name:<{width}}  {_said(verdict)}"
        for verdict in found
    ]


def _said(verdict: Verdict) -> str:
    if verdict.state == NOT_APPLICABLE:
        return f"(needs {verdict.needs})"
    return verdict.first if verdict.state == VIOLATED else verdict.sentence
