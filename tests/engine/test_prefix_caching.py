"""With a prefix cache, tokens equal those of an ample run, and passes of `dry` those of a CPU.

Other workloads than these: pytest tests/engine/test_prefix_caching.py --policy-seeds 100-119
"""

from typing import Any

import pytest

from tests.warm import Warm

from .cases import marked, that_run_here
from .shared_prefixes import CASES, VICTIM_CASES

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

FEW = ["prefill_first, swap", "mixed, fullest first", "chunked, recompute"]
Cases = dict[str, dict[str, Any]]


def serve_all(seeds: range, cases: list[str]) -> Cases:
    from .shared_prefixes import compared

    return {case["case"]: case for case in compared(seeds, that_run_here(cases))}


@pytest.fixture(scope="module")
def few(warm: Warm) -> Cases:
    return warm.call(serve_all, range(1, 5), FEW)


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, warm: Warm) -> Cases:
    first, last = map(int, request.config.getoption("--policy-seeds").split("-"))
    cases = [case for case in CASES if case not in FEW]
    return warm.call(serve_all, range(first, last + 1), cases)


def assert_sound(found: dict[str, Any], *counted: str) -> None:
    for name in ("preemptions", "hits", "evictions", *counted):
        assert found[name] >= 5, f"too few {name} to show anything"
    assert found["tokens"] == []
    assert found["dry"] == []
    assert found["left"] == 0


@pytest.mark.representative
@pytest.mark.parametrize("case", FEW)
def test_a_prefix_cache_changes_no_token_and_dry_has_the_same_passes(few: Cases, case: str):
    assert_sound(few[case], "shared")


@pytest.mark.parametrize("case", marked(case for case in CASES if case not in FEW))
def test_runs_are_sound_with_every_policy(served: Cases, case: str):
    assert_sound(served[case])


SOME, OTHERS = VICTIM_CASES[::4], [case for n, case in enumerate(VICTIM_CASES) if n % 4]


@pytest.fixture(scope="module")
def by_some_victims(warm: Warm) -> Cases:
    return warm.call(serve_all, range(1, 5), SOME)


@pytest.fixture(scope="module")
def by_other_victims(warm: Warm) -> Cases:
    return warm.call(serve_all, range(1, 5), OTHERS)


@pytest.mark.parametrize("case", marked(SOME))
def test_runs_are_sound_whichever_request_is_preempted(by_some_victims: Cases, case: str):
    assert_sound(by_some_victims[case])


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", marked(OTHERS))
def test_runs_are_sound_by_every_rule_for_victims(by_other_victims: Cases, case: str):
    assert_sound(by_other_victims[case])


def uncomputed(seeds: range, forgets: bool) -> int:
    from .shared_prefixes import uncomputed_blocks

    return len(uncomputed_blocks(seeds, forgets))


def test_a_block_that_no_pass_fills_is_not_left_in_the_cache(warm: Warm):
    """vLLM leaves it there where the schedule that had a request fill a block preempts it."""
    assert warm.call(uncomputed, range(40), True) == 0
    assert warm.call(uncomputed, range(40), False) > 0
