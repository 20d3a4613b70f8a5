"""The oracles of a run's host tables: properties that hold of every correct run.

`registry` lists them. Each compares two independent records of one fact, so that an error in the
engine, in the recorder or in a table shows up as a contradiction. The oracles of KV events are in
the package that reads them; docs/METRICS.md and docs/KV_EVENTS.md list both.
"""
