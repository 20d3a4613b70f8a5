"""Counts of tokens that only servers with some feature tell of a request in a pass.

Each is a column of `batch`. It is read from vLLM's objects in the engine's thread, travels with the
records `Scheduled` or `Sampled`, and is the column's value again. A feature is recorded by standing
in FEATURES.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kvscope_record.records import Sampled, Scheduled

Numbers = Mapping[str, int]
"""The numbers of requests in a recording, by vLLM's ids."""
Rows = list[list[int]]
"""Number of each request with counts, and its count of each column."""


class Feature(NamedTuple):
    """A feature of servers, and the columns that it has.

    `setting` names a fact of the recording: the most tokens of a request in a pass, 0 without the
    feature, as `most` reads it from vLLM's configuration. Rows of a column are read `at_schedule`
    from vLLM's `SchedulerOutput`; `at_output` from the scheduler, from that, and from the
    `ModelRunnerOutput` before vLLM looks at it. `left_out` says what a study of it lacks.
    """

    setting: str
    most: Callable[[Any], int]
    at_schedule: Mapping[str, Callable[[Numbers, Any], Rows]]
    at_output: Mapping[str, Callable[[Numbers, Any, Any, Any], Rows]]
    left_out: str


class Counts:
    """The counts of a server with these facts of its recording."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        features = features_of(facts)
        self._at_schedule = {
            k: read for feature in features for k, read in feature.at_schedule.items()
        }
        self._at_output = {k: read for feature in features for k, read in feature.at_output.items()}

    def at_schedule(self, numbers: Numbers, scheduled: Any) -> Rows:
        """The rows of a pass that has been scheduled."""
        if not self._at_schedule:
            return []
        return _merged([read(numbers, scheduled) for read in self._at_schedule.values()])

    def at_output(self, numbers: Numbers, scheduler: Any, scheduled: Any, output: Any) -> Rows:
        """The rows of a pass whose output is there."""
        if not self._at_output:
            return []
        seen = numbers, scheduler, scheduled, output
        return _merged([read(*seen) for read in self._at_output.values()])

    def recorded(self, scheduled: Scheduled, sampled: Sampled) -> Mapping[str, Mapping[int, int]]:
        """Counts of each column in the records of a pass, by request."""
        by_column = _by_column([*self._at_schedule], scheduled.counts)
        return by_column | _by_column([*self._at_output], sampled.counts)


def _merged(parts: list[Rows]) -> Rows:
    """Rows of several columns, merged; 0 is the count of a request that a column lacks."""
    if len(parts) == 1:
        return parts[0]
    merged: dict[int, list[int]] = {}
    for place, rows in enumerate(parts):
        for request, count in rows:
            merged.setdefault(request, [0] * len(parts))[place] = count
    return [[request, *counts] for request, counts in merged.items()]


def _by_column(columns: Sequence[str], rows: Sequence[Sequence[int]]) -> dict[str, dict[int, int]]:
    of_column: dict[str, dict[int, int]] = {column: {} for column in columns}
    for request, *counts in rows if columns else ():
        for column, count in zip(columns, counts, strict=True):
            of_column[column][request] = count
    return of_column


def settings_of(config: Any) -> dict[str, int]:
    """The settings of all features by vLLM's configuration, as facts of a recording."""
    return {feature.setting: feature.most(config) for feature in FEATURES}


def features_of(facts: Mapping[str, Any]) -> list[Feature]:
    """The features that the server of a recording has."""
    return [feature for feature in FEATURES if facts.get(feature.setting)]


# ---------------------------------------------------------------------- speculative decoding


def _most_drafts(config: Any) -> int:
    speculative = config.speculative_config
    return 0 if speculative is None else speculative.num_speculative_tokens


def _drafts(numbers: Numbers, scheduled: Any) -> Rows:
    return [[numbers[n], len(d)] for n, d in scheduled.scheduled_spec_decode_tokens.items()]


def _accepted(numbers: Numbers, scheduler: Any, scheduled: Any, output: Any) -> Rows:
    """All tokens that the pass gives but the last; vLLM has not yet cut what ends."""
    counts = []
    for name in scheduled.scheduled_spec_decode_tokens:
        request = scheduler.requests.get(name)
        if request is not None and not request.is_finished() and output.sampled_token_ids:
            tokens = output.sampled_token_ids[output.req_id_to_index[name]]
            counts.append([numbers[name], max(0, len(tokens) - 1)])
    return counts


SPECULATION = Feature(
    "draft_tokens",
    _most_drafts,
    {"draft_tokens": _drafts},
    {"accepted_tokens": _accepted},
    "speculative decoding: a pass of the study gives a request one token",
)

FEATURES: tuple[Feature, ...] = (SPECULATION,)
"""The features that are recorded; those of earlier recordings keep their order."""
