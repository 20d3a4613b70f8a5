"""Evidence: what a run has decides which oracles judge it, whoever made it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvscope.judge.oracles.facts import origin_wrong
from kvscope.judge.oracles.registry import ORACLES, ROWS
from kvscope.judge.oracles.run_tables import RunTables
from kvscope.judge.records import Records, read_records
from kvscope.judge.twin.evidence import NEEDS
from kvscope.judge.twin.evidence import ROWS as TABLES
from kvscope.tables import evidence
from kvscope.tables.kv_group import KvGroup
from kvscope.tables.runschema import RunRecord
from tests.unit.report_fixture import Fake, write_experiment

FULL = KvGroup("FullAttention", 2, 8, 8, 8, 8)
WINDOW = KvGroup("SlidingWindow", 2, 8, 8, 8, 8, window_tokens=16)
UNKNOWN = KvGroup("Unknown", 2, 8, 8, 8, 8)

OF_SETTINGS = {
    *("batching_wrong", "facts_differ", "limit_exceeded", "prediction_wrong", "settings_differ"),
    *("victim_wrong", "clocks_differ", "copy_cpu_wrong", "timings_differ"),
    *("groups_differ", "workload_differs"),
}
OF_ORDER = {"passes_apart", "passes_overlap", "preemption_misplaced"}
OF_ANY_RUN = {"blocks_leaked", "outputs_differ", "rows_wrong", "time_source_differs"}
IN_USE = {"steps.kv_blocks_used", "preemptions.blocks", "transfers.blocks"}
CACHED = {"hits", "evictions"}
"""Columns and tables that are compared with the replay."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Records:
    fake = Fake({"kind": "swap"}, "swap")
    made = read_records(write_experiment(fake, tmp_path_factory.mktemp("evidence")))
    return made.variant(kv_groups=groups_of(FULL), settings=made.settings)


def groups_of(*groups: KvGroup) -> pd.DataFrame:
    return pd.DataFrame([{"kv_group": at} | asdict(one) for at, one in enumerate(groups)])


def judged(run: Records) -> set[str]:
    """The oracles that look at a run."""
    tables = RunTables(run)
    return {oracle.name for oracle in (*ROWS, *ORACLES) if oracle.need.met(tables)}


def replayed(run: Records) -> set[str]:
    """Checks of IN_USE and CACHED that a run has by its evidence."""
    known = run.evidence.issuperset
    needs = {name: NEEDS[table][column] for name in IN_USE for table, column in [name.split(".")]}
    return {
        name for name, words in (needs | {t: TABLES[t] for t in CACHED}).items() if known(words)
    }


def recording(run: Records, *groups: KvGroup, **server: Any) -> Records:
    """The run as a recording of a server that says this of itself."""
    server = {"kv_groups": [asdict(group) for group in groups or (FULL,)], **server}
    result = evidence.of_recording(server)
    facts = run.facts | {"recorded": server, "files": {}, "evidence": sorted(result)}
    return run.variant(facts=facts, settings={}, kv_groups=groups_of(*groups or (FULL,)))


def with_evidence(run: Records, *words: str) -> Records:
    return run.variant(facts=run.facts | {"evidence": list(words)}, settings={})


def test_a_recording_is_judged_by_all_but_its_settings(run: Records) -> None:
    assert judged(run) - judged(recording(run)) == OF_SETTINGS


@pytest.mark.parametrize(
    ("groups", "server", "lost"),
    [
        ((FULL,), {"prefix_caching": True}, set()),
        ((FULL, WINDOW), {}, set()),
        ((FULL, WINDOW), {"prefix_caching": True}, IN_USE | CACHED),
        ((UNKNOWN,), {}, IN_USE | CACHED),
        ((FULL,), {"draft_tokens": 2}, set()),
        ((FULL,), {"overlapping": True}, IN_USE | CACHED | OF_ORDER),
        ((FULL,), {"connector": "OffloadingConnector"}, IN_USE | CACHED),
    ],
)
def test_unknown_facts_of_a_server_remove_the_oracles_that_need_them(
    run: Records, groups: tuple[KvGroup, ...], server: dict[str, Any], lost: set[str]
) -> None:
    one, other = recording(run), recording(run, *groups, **server)
    assert (judged(one) | replayed(one)) - judged(other) - replayed(other) == lost


def test_a_recording_whose_first_passes_are_gone_is_judged_by_its_values(run: Records) -> None:
    assert judged(recording(run, first_step=7)) == OF_ANY_RUN | {"stalled_wrong"}


@pytest.mark.parametrize("words", [(), (evidence.PASSES, evidence.ORDER)])
def test_an_import_without_a_clock_is_judged_by_its_values(
    run: Records, words: tuple[str, ...]
) -> None:
    expected = OF_ANY_RUN | ({"differs_from_replay"} if evidence.PASSES in words else set())
    assert judged(with_evidence(run, *words)) == expected
    assert judged(with_evidence(run, *words, evidence.STALLS)) == expected | {"stalled_wrong"}


@pytest.mark.parametrize("word", sorted(evidence.OWN))
def test_a_run_by_kvscope_that_hides_evidence_is_refused(run: Records, word: str) -> None:
    facts = run.facts | {"files": {"experiment.yaml": {"bytes": 1, "sha256": "a" * 64}}}
    assert not origin_wrong(RunRecord.model_validate(facts))
    facts["evidence"] = [name for name in facts["evidence"] if name != word]
    assert word in origin_wrong(RunRecord.model_validate(facts)).first


def test_a_recording_that_hides_evidence_is_refused(run: Records) -> None:
    facts = recording(run).facts
    assert not origin_wrong(RunRecord.model_validate(facts))
    facts = facts | {"evidence": [name for name in facts["evidence"] if name != "blocks"]}
    assert "blocks" in origin_wrong(RunRecord.model_validate(facts)).first


def test_a_run_of_before_has_the_evidence_of_its_records(run: Records, tmp_path: Path) -> None:
    old = {key: value for key, value in run.facts.items() if key != "evidence"}
    files = {name: file for name, file in run.facts["files"].items() if "kv_groups" not in name}
    old |= {"schema": 3, "files": files}
    assert run.variant(facts=old).evidence == evidence.ALL - {evidence.KV_GROUPS}
    assert (
        Records(tmp_path, facts=old | {"imported_from": {"kind": "k", "files": []}}).evidence
        == set()
    )
