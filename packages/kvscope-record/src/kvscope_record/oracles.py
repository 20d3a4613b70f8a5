"""Oracle of recordings: nothing is missing in them."""

from kvscope.api.oracles import oracle, run_tables

ORDER = 2
"""Place on the checklist: before the oracles of tables."""


def recording_gaps(run: run_tables.RunTables) -> oracle.Violations | None:
    """A recording has every pass from the first one of its tables to the last.

    Passes are missing if a file was damaged or removed, or if the disk was full.
    """
    if run.server is None:
        return None
    return oracle.violations(run.server.missing, str)


MISSING = oracle.Oracle(recording_gaps, order=ORDER)
