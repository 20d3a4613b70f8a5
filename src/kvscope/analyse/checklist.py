"""The checklist of a run: the verdict of every oracle on what it recorded."""

from pathlib import Path
from typing import Any

from kvscope import accounts, tables
from kvscope.accounts import COLLECTED
from kvscope.analyse.oracles.registry import ORACLES, run_of
from kvscope.analyse.records import Records
from kvscope.collect.judge import judged_events, verdicts_of
from kvscope.oracle import Verdict, judged
from kvscope.runfile import COMPLETE, TRACING


def checklist(
    run: Path, facts: dict[str, Any], records: Records, collected: Path | None = None
) -> list[Verdict]:
    """The verdicts on a complete run; none on one that failed.

    Those on its KV events are as collect.json in `collected` has them, or found again in the raw
    file. Raises BadInput if that is not there, damaged, or made from another measurement.
    """
    if facts["status"] != COMPLETE:
        return []
    found = judged(ORACLES, run_of(run, facts, records))
    if TRACING not in facts:
        return found + verdicts_of({})
    if collected is None:
        return found + verdicts_of(judged_events(run))
    account = accounts.read(collected, COLLECTED, run)
    accounts.require_unchanged(collected, account, f"{tables.KV_EVENTS.name}.parquet")
    return found + verdicts_of(account["kv_events"]["oracles"])
