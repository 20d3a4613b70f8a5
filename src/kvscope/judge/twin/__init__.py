"""The judge of a run's tables: a replay of the run's decisions, compared with the tables.

A run records decisions and their times: the requests and tokens of each pass, preemptions, and
orders of copies. Everything else follows from these, and the tables also state it. `twin` computes
it without reading those cells, `compare` finds the differences. `evidence` says which columns can
be compared, by the evidence that the run has.
"""
