"""Sources of the times of a run: a clock, a cost model, or a rehearsal."""

from collections.abc import Collection

from kvscope.base.errors import BadInput

MEASURED = "measured"
"""The time_source of times by a real clock."""

MODELED = "modeled"
"""The time_source of times by a cost model."""

REHEARSED = "rehearsed"
"""The time_source of a run whose device was not there: a CPU in the place of a GPU."""

NOT_MEASURED = "rehearsed, not measured"
"""The words beside every number of a rehearsed run."""

BY_CLOCK = frozenset({MEASURED, REHEARSED})
"""The time_sources of a real clock: it ticks while the engine works, and its readings differ."""


def mark_of(source: str | None) -> str:
    """' (rehearsed, not measured)' after a number of a rehearsed run; '' after other numbers."""
    return f" ({NOT_MEASURED})" if source == REHEARSED else ""


def time_source_of(own: str | None, said: Collection[str]) -> str:
    """The source of a run's times by its run.json (`own`) and by its tables (`said`).

    A run is rehearsed if any of them says so, even if the word was removed from others. Otherwise
    run.json decides, if it names a source.
    """
    if REHEARSED in (own, *said):
        return REHEARSED
    return str(own or min(said, default=MEASURED))


def rehearsal_refused(what: object, by: str) -> BadInput:
    """The error of a command that refuses a rehearsed run or study."""
    return BadInput(
        f"{by}: {what} is {NOT_MEASURED}: a CPU was in the place of its GPU, so its times say "
        "nothing of one; run it where the GPU is, with `kvscope run --force` or in other results"
    )
