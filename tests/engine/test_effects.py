"""Two values of a key give different records in some case, are refused, or `kvscope plan` says it.

On the modeled device, by each admission's rules. `tests/unit/test_effects.py` has the workloads'
keys, and sees that every key is walked in one of the two.
"""

from collections.abc import Callable

import pytest

from kvscope.errors import BadInput
from kvscope.plan import effects
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import Plan, expand
from tests.unit.keys_walked import ADMISSIONS, SMALL, WALKED, Walk
from tests.warm import Warm

from .conftest import ROOT
from .records_of import Records, records_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]

RecordsOf = Callable[[list[str]], Records]


@pytest.fixture(scope="module")
def recorded(warm: Warm) -> RecordsOf:
    """The records of an experiment of the small workload; each is run once."""
    found: dict[str, Records] = {}

    def run(words: list[str]) -> Records:
        one = experiment(words)
        if one.id not in found:
            (found[one.id],) = warm.call(records_of, [one])
        return found[one.id]

    return run


def experiment(words: list[str]) -> Experiment:
    (planned,) = plan_of(words).experiments
    return planned.experiment


def plan_of(words: list[str]) -> Plan:
    """The plan of the small workload with these words; of several of one key the last holds."""
    last = {word.partition("=")[0]: word for word in (*SMALL, *words)}
    return expand(None, [*last.values()], ROOT / "config")


@pytest.mark.parametrize("walk", WALKED, ids=str)
@pytest.mark.parametrize("admission", ADMISSIONS)
def test_two_values_of_a_key_differ_are_refused_or_their_sameness_is_said(
    walk: Walk, admission: str, recorded: RecordsOf
) -> None:
    said = []
    for context in walk.contexts:
        words = [f"cache.admission={admission}", *context.split()]
        second = [*words, f"{walk.key}={walk.second}"]
        first = experiment(words)
        try:
            assert experiment(second).id != first.id, "two values are one experiment"
        except BadInput as error:
            said.append(str(error))
            continue
        if recorded(words) != recorded(second):
            assert walk.key not in effects.idle_keys(first), context
            return
        said.append(" ".join(effects.notes(plan_of(second))))
    assert said
    assert all(walk.key in sentence for sentence in said), f"{walk} changes nothing, unsaid"
