"""Counts that only some servers have, on their way from vLLM's objects to columns of `batch`."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope import tables
from kvscope_record import counts
from kvscope_record.counts import Counts, Feature, settings_of
from kvscope_record.records import Sampled, Scheduled

NUMBERS = {"a": 4, "b": 5, "c": 6}
BY_REQUEST = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 9))


def scheduled(rows: Any) -> Scheduled:
    return Scheduled(0, 0, 1, 0, 9, 0, [], [4, 5, 6], [4, 4, 1], [9, 9, 9], [], [], rows)


def sampled(rows: Any) -> Sampled:
    return Sampled(0, 2, 3, [4, 5, 6], [3, 1, 1], rows)


def speculating(**ended: bool) -> tuple[Any, Any, Any]:
    """vLLM's scheduler, schedule and output: of 3 drafts 2 are right, of 2 none."""
    requests = {
        name: SimpleNamespace(is_finished=lambda name=name: ended.get(name, False))
        for name in NUMBERS
    }
    drafts = {"a": [7, 7, 7], "b": [7, 7]}
    return (
        SimpleNamespace(requests=requests),
        SimpleNamespace(scheduled_spec_decode_tokens=drafts),
        SimpleNamespace(
            sampled_token_ids=[[1], [1, 2, 3], [1]], req_id_to_index={"c": 0, "a": 1, "b": 2}
        ),
    )


def test_drafts_are_recorded_as_they_ever_were():
    """A row is a request and a number: recordings of all versions are read alike."""
    scheduler, schedule, output = speculating()
    read = Counts({"draft_tokens": 3})
    drafts = read.at_schedule(NUMBERS, schedule)
    accepted = read.at_output(NUMBERS, scheduler, schedule, output)
    assert (drafts, accepted) == ([[4, 3], [5, 2]], [[4, 2], [5, 0]])
    assert read.recorded(scheduled(drafts), sampled(accepted)) == {
        "draft_tokens": {4: 3, 5: 2},
        "accepted_tokens": {4: 2, 5: 0},
    }


def test_drafts_of_a_request_that_has_ended_meanwhile_are_not_judged_by_its_output():
    scheduler, schedule, output = speculating(a=True)
    read = Counts({"draft_tokens": 3})
    assert read.at_output(NUMBERS, scheduler, schedule, output) == [[5, 0]]


@pytest.mark.parametrize("facts", [{"draft_tokens": 0}, {}])
def test_a_server_without_the_feature_has_neither_counts_nor_columns(facts: dict[str, int]):
    read = Counts(facts)
    assert read.at_schedule(NUMBERS, speculating()[1]) == []
    assert read.at_output(NUMBERS, *speculating()) == []
    assert read.recorded(scheduled([]), sampled([])) == {}


def test_the_setting_of_a_feature_is_a_fact_of_the_recording():
    speculative = SimpleNamespace(num_speculative_tokens=3)
    assert settings_of(SimpleNamespace(speculative_config=speculative)) == {"draft_tokens": 3}
    assert settings_of(SimpleNamespace(speculative_config=None)) == {"draft_tokens": 0}


def test_a_feature_has_a_setting_by_the_name_of_its_first_column_and_columns_of_batch():
    for feature in counts.FEATURES:
        columns = [*feature.at_schedule, *feature.at_output]
        assert feature.setting == columns[0]
        assert set(columns) <= set(tables.BATCH.names)


@given(st.lists(BY_REQUEST, min_size=1, max_size=3), BY_REQUEST)
def test_counts_of_several_features_come_back_column_by_column(
    at_schedule: list[dict[str, int]], at_output: dict[str, int]
):
    def by_number(of: dict[str, int]) -> dict[int, int]:
        return {NUMBERS[name]: count for name, count in of.items()}

    def rows(of: dict[str, int]) -> list[list[int]]:
        return [[*row] for row in by_number(of).items()]

    made = tuple(
        Feature(str(at), lambda _: 1, {f"s{at}": lambda *_, of=of: rows(of)}, {}, "")
        for at, of in enumerate(at_schedule)
    )
    last = Feature("last", lambda _: 1, {}, {"o": lambda *_: rows(at_output)}, "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "FEATURES", (*made, last))
        read = Counts(settings_of(None))
        told = read.recorded(
            scheduled(read.at_schedule(NUMBERS, None)),
            sampled(read.at_output(NUMBERS, None, None, None)),
        )
    for column, of in [(f"s{at}", of) for at, of in enumerate(at_schedule)] + [("o", at_output)]:
        assert {n: c for n, c in told[column].items() if c} == by_number(of)
