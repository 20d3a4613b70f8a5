"""The judge of a run's tables: a replay of the run's decisions, compared with the tables.

A run says what was decided and when: which requests each pass computed and how many tokens of
them, who was preempted, what was ordered of the host. All else follows, and is said a second time
by the tables. `twin` works it out without a look at them, `compare` says where they differ. Which
columns a run is held against is said by the evidence that it has (`evidence`).
"""
