"""The queues, limits and nodes of a cluster like ALCF's Polaris.

Source: https://docs.alcf.anl.gov/polaris/running-jobs/ and what `qstat -Qf` shows there.
"""

HOUR = 3600


def execution(nodes, hours, **limits):
    """A queue that runs jobs: its range of nodes, its longest walltime, and further limits."""
    return {"min_nodes": nodes[0], "max_nodes": nodes[1], "max_walltime_s": hours * HOUR, **limits}


# max_run, max_queued: how many jobs may run, or be there, of one user ("u") or project ("p")
# max_waiting: how many jobs may be in state Q (queued_jobs_threshold)
SHORTEST = {"min_walltime_s": 300}
POLARIS = {
    "debug": execution((1, 2), 1, max_run={"u": 1}, max_waiting={"u": 1}, **SHORTEST),
    "debug-scaling": execution((1, 10), 1, max_queued={"u": 1}, max_waiting={"u": 1}, **SHORTEST),
    "preemptable": execution(
        (1, 10), 72, max_run={"p": 10}, max_queued={"u": 20}, priority=50, **SHORTEST
    ),
    "demand": execution((1, 56), 1, max_queued={"p": 100}, priority=200, preempts=["preemptable"]),
    "capacity": execution((1, 4), 168, max_run={"u": 1}, max_queued={"u": 2}),
    "small": execution((10, 24), 3, max_queued={"p": 10}, from_route_only=True, **SHORTEST),
    "medium": execution((25, 99), 6, max_queued={"p": 10}, from_route_only=True),
    "large": execution((100, 496), 24, max_queued={"p": 10}, from_route_only=True),
    "backfill-small": execution((10, 24), 3, max_queued={"p": 10}, from_route_only=True),
    "prod": execution(
        (10, 496),
        24,
        max_queued={"p": 100},
        routes=["small", "medium", "large", "backfill-small"],
        **SHORTEST,
    ),
}
DEFAULT_QUEUE = "prod"


def node_names(count):
    """Names like Polaris's: x3001c0s1b0n0, x3001c0s1b1n0, x3001c0s7b0n0, …"""
    slots = (1, 7, 13, 19, 25, 31, 37)
    per_rack = 2 * len(slots)
    return [f"x{3001 + i // per_rack}c0s{slots[i % per_rack // 2]}b{i % 2}n0" for i in range(count)]
