"""The oracles of a run's host tables: what must hold of every run, whatever the engine did.

`ORACLES` has them all. Each compares what was recorded in two ways, so that an error in the
engine, in what observes it, or in a table contradicts something. Oracles of KV events are in
`kvscope.collect.oracles`. docs/METRICS.md lists them all.
"""
