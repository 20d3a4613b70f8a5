"""Results that warm-up recomputed speak for or against a run."""

import pytest

from kvscope.judge.oracles.engine_checks import ENGINE_ORACLES
from kvscope.report.reasons import reason_in_words
from kvscope.tables.oracle import Oracle, verdict
from kvscope.tables.verdict import HELD, NOT_APPLICABLE, VIOLATED
from tests.run_records import record_of

KEYS = {"attention_differs": "reference_checks", "swap_differs": "swap_checks"}
oracles = pytest.mark.parametrize("oracle", ENGINE_ORACLES, ids=lambda oracle: oracle.name)


@oracles
def test_a_difference_is_a_violation(oracle: Oracle) -> None:
    result = {"compared": 9, "differing": 2, "first": "layer 3, head 1"}
    judged = verdict(oracle, oracle.function(record_of(engine={KEYS[oracle.name]: result})))
    assert (judged.state, judged.violations, judged.first) == (VIOLATED, 2, "layer 3, head 1")
    same = result | {"differing": 0, "first": ""}
    assert (
        verdict(oracle, oracle.function(record_of(engine={KEYS[oracle.name]: same}))).state == HELD
    )


@oracles
@pytest.mark.parametrize("engine", [{}, {"compared": 0, "differing": 0, "first": ""}])
def test_values_that_were_not_compared_are_not_reported(oracle: Oracle, engine: dict) -> None:
    known: list[dict] = [{}, {"engine": {}}, {"engine": {KEYS[oracle.name]: engine}}]
    for facts in known:
        assert verdict(oracle, oracle.function(record_of(**facts))).state == NOT_APPLICABLE


@oracles
def test_the_report_has_words_for_it(oracle: Oracle) -> None:
    assert oracle.sentence in reason_in_words(oracle.name)
    assert oracle.sentence.endswith(".")
