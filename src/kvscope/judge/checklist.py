"""The checklist of a run: the verdicts of all oracles."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

from kvscope.collect.traces import installed_reader, reader_of, verdicts
from kvscope.judge.oracles.engine_checks import ENGINE_ORACLES
from kvscope.judge.oracles.facts import origin_wrong
from kvscope.judge.oracles.registry import ROWS, all_oracles, judge_tables
from kvscope.judge.records import Records
from kvscope.tables import KV_EVENTS, accounts
from kvscope.tables.accounts import COLLECTED
from kvscope.tables.oracle import Oracle, judge
from kvscope.tables.results import Run
from kvscope.tables.runschema import RunRecord
from kvscope.tables.verdict import HELD, NOT_APPLICABLE, VIOLATED, Verdict

FACTS: tuple[Oracle[RunRecord], ...] = (Oracle(origin_wrong), *ENGINE_ORACLES)


def every_oracle() -> list[Oracle[Any]]:
    """All oracles, in the order of the checklist; BadInput if a package's cannot be used."""
    reader = installed_reader()
    return [*ROWS, *all_oracles(), *FACTS, *(reader.oracles if reader else ())]


def checklist(records: Records, collected: bool = False) -> list[Verdict]:
    """The verdicts of all oracles on a complete run; empty for a failed run.

    If `collected`, the verdicts on KV events are read from collect.json; otherwise the raw file is
    judged again. Raises BadInput if that file is missing, damaged, or of another measurement.
    """
    if not records.record.complete:
        return []
    of_tables = judge_tables(records) + judge(FACTS, records.record)
    return of_tables + _of_events(records, collected)


def _of_events(run: Run, collected: bool) -> list[Verdict]:
    """The verdicts on KV events, not applicable without any; none if nothing here reads events."""
    if not run.record.tracing:
        reader = installed_reader()
        return verdicts(reader, {}) if reader else []
    reader = reader_of(run)
    if not collected:
        return verdicts(reader, reader.judge(run))
    account = run.account(COLLECTED)
    accounts.require_unchanged(run.tables_directory, account, KV_EVENTS.file)
    return verdicts(reader, account["kv_events"]["oracles"])


def read_verdicts(account: Mapping[str, Any]) -> list[Verdict]:
    """The verdicts that analyse.json records."""
    names = [field.name for field in fields(Verdict)]
    return [_verdict(*(entry[name] for name in names)) for entry in account["oracles"]]


@lru_cache(4096)
def _verdict(*values: Any) -> Verdict:
    """The verdict of these fields: runs of a study share most of them."""
    return Verdict(*values)


def summary(found: Sequence[Verdict]) -> str:
    """The number of oracles in each state: '40 held, 0 violated, 21 not applicable'."""
    states = Counter(verdict.state for verdict in found)
    return ", ".join(f"{states[state]} {state}" for state in (HELD, VIOLATED, NOT_APPLICABLE))


def format_lines(found: Sequence[Verdict]) -> list[str]:
    """One line a verdict: state, oracle, and its sentence, first violation or need."""
    width = max(len(verdict.name) for verdict in found)
    return [
        f"  {verdict.state:<{len(NOT_APPLICABLE)}}  {verdict.name:<{width}}  {_detail(verdict)}"
        for verdict in found
    ]


def _detail(verdict: Verdict) -> str:
    if verdict.state == NOT_APPLICABLE:
        return f"(needs {verdict.needs})"
    return verdict.first if verdict.state == VIOLATED else verdict.sentence
