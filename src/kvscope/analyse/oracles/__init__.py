"""The oracles of a run's host tables: properties that hold of every correct run.

`registry` lists them. Each compares two independent records of one fact, so that an error in the
engine, in the recorder or in a table shows up as a contradiction. The oracles of KV events are in
`kvscope.collect.oracles`; docs/METRICS.md lists both.
"""
