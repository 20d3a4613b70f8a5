"""Tokens found in the prefix cache, as far as a recording tells."""

from pathlib import Path
from typing import Any

import pytest
from test_replay import GROUP, PROMPTS, record

from kvscope.judge.oracles.registry import judge_tables
from kvscope.judge.oracles.replay import comparison_of
from kvscope.judge.oracles.run_tables import RunTables
from kvscope.judge.records import Records
from kvscope.metrics.registry import all_metrics
from kvscope.tables.verdict import VIOLATED
from kvscope_record.collect import collect_recording

FOUND = 32  # tokens, by the second request
WINDOWS = GROUP | {"kind": "SlidingWindow", "window_tokens": 64}
OF_BLOCKS = ["own_hit_tokens", "other_hit_tokens", "prefix_cache_evictions"]


def collected(directory: Path, hits: int = FOUND, **facts: Any) -> Records:
    collect_recording(record(directory, hits=hits, computed=PROMPTS[1][1] - hits, **facts))
    return Records(directory)


def metrics_of(records: Records) -> dict[str, Any]:
    wanted = ["prefix_cache_hit_rate", *OF_BLOCKS]
    result = {metric.name: metric(records) for metric in all_metrics() if metric.name in wanted}
    return {name: None if result[name] != result[name] else result[name] for name in wanted}


def violated(records: Records) -> set[str]:
    """The oracles that a recording violates, and the tables that differ from its replay."""
    names = {verdict.name for verdict in judge_tables(records) if verdict.state == VIOLATED}
    columns = comparison_of(RunTables(records)).columns
    return names | {column.partition(".")[0] for column in columns}


def test_the_share_found_is_that_of_all_tokens(tmp_path: Path):
    records = collected(tmp_path)
    computed = int(records.steps["prefill_tokens"].sum())
    rate = metrics_of(records)["prefix_cache_hit_rate"]
    assert rate == pytest.approx(FOUND / (FOUND + computed))


def test_without_a_prefix_cache_nothing_is_said_of_it(tmp_path: Path):
    records = collected(tmp_path, hits=0, prefix_caching=False)
    assert set(metrics_of(records).values()) == {None}
    assert "hits" not in violated(records)


@pytest.mark.parametrize("groups", [[WINDOWS], [GROUP, WINDOWS]], ids=["windows", "two"])
def test_which_blocks_were_found_is_not_known_of_several_groups_or_windows(
    tmp_path: Path, groups: list[dict[str, Any]]
):
    records = collected(tmp_path, kv_groups=groups)
    assert records.batch["hit_tokens"].sum() == FOUND
    assert records.batch["own_hit_tokens"].isna().all()
    result = metrics_of(records)
    assert result.pop("prefix_cache_hit_rate") > 0
    assert result == dict.fromkeys(OF_BLOCKS)
    assert "hits" not in violated(records)
    assert "rows_wrong" not in violated(records)
