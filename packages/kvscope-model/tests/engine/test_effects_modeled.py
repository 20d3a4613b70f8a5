"""Two values of a key give different records in some case, are refused, or `kvscope plan` says it.

On the modeled device, by each admission's rules. `tests/unit/test_effects.py` of kvscope has the
workloads' keys, and sees that every key is walked in one of the two.
"""

import pytest
from walking import unsaid

from tests.unit.keys_walked import ADMISSIONS, RESERVE, WALKED, Walk
from tests.warm import Warm

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.mark.exhaustive
@pytest.mark.parametrize("admission", ADMISSIONS)
def test_two_values_of_each_key_differ_are_refused_or_their_sameness_is_said(
    admission: str, warm: Warm
) -> None:
    assert warm.call(unsaid, [*WALKED], admission) == []


@pytest.mark.parametrize("admission", ADMISSIONS)
def test_reserving_room_for_a_prompt_changes_records_or_is_refused(
    admission: str, warm: Warm
) -> None:
    walks = [walk for walk in WALKED if walk.key == RESERVE]
    assert warm.call(unsaid, walks, admission) == []


def test_a_key_that_changes_nothing_unsaid_is_found(warm: Warm) -> None:
    """The walk can fail: where nothing is preempted, no victim is chosen."""
    ample = Walk("overflow.victim", "first", ("overflow=recompute cache.blocks=400",))
    (fault,) = warm.call(unsaid, [ample], "vllm")
    assert "it changes nothing, unsaid" in fault
