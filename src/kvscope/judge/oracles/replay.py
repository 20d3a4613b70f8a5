"""The oracle that holds a run against its replay."""

from kvscope.judge.oracles.rules import rules_of
from kvscope.judge.oracles.run_tables import RunTables
from kvscope.judge.twin.columns import JOBS, Tables
from kvscope.judge.twin.compare import Comparison, compare
from kvscope.judge.twin.requests import Request
from kvscope.judge.twin.rules import Rules
from kvscope.judge.twin.told import Prompts, told
from kvscope.judge.twin.twin import Twin, Watcher
from kvscope.tables import HOST_TABLES
from kvscope.tables.oracle import Violations
from kvscope.tables.run_view import RunView

__all__ = [
    "Request",
    "Rules",
    "Twin",
    "Watcher",
    "comparison_of",
    "differs_from_replay",
    "rules",
    "tables_of",
    "watch",
]


def differs_from_replay(run: RunTables) -> Violations:
    """Every cell that follows from the scheduler's decisions equals that of a replay of them.

    The replay takes from the run which requests a pass computed and how many tokens of each, which
    were preempted or aborted, the orders of vLLM's offloading, and the times. It has a KV cache, a
    prefix cache and a host pool of its own. Columns without evidence in the run are not checked.
    """
    comparison = comparison_of(run)
    return Violations(comparison.count, comparison.words)


def comparison_of(run: RunTables) -> Comparison:
    """Replay of each repeat of a run, and the differences from it."""
    records = run.records
    repeats = ((number, tables_of(repeat)) for number, repeat in run.repeats.items())
    prompts = Prompts(records.workload, records.block_size)
    return compare(repeats, rules_of(run), run.evidence, prompts)


def watch(records: RunView, number: int, watcher: Watcher) -> Twin:
    """Replay one repeat of a run under the eyes of a watcher, as far as the run has evidence."""
    run = RunTables(records)
    prompts = Prompts(records.workload, records.block_size)
    decisions = told(tables_of(run.repeats[number]), run.evidence)
    return Twin(rules_of(run), decisions, prompts, run.evidence, watcher).play()


def rules(records: RunView) -> Rules:
    """The sizes and rules of the engine of a run."""
    return rules_of(RunTables(records))


def tables_of(records: RunView) -> Tables:
    """The host tables and jobs, by name, of a run or of a repeat."""
    return {table.name: getattr(records, table.name) for table in HOST_TABLES} | {
        JOBS: records.jobs
    }
