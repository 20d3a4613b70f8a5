"""The processes of a job, by session: that is how PBS knows them.

A run's directory has `sessions/NODE.SESSION`, an empty file for each session on one of its nodes.
A process that starts a session of its own is not found any more, as on a real cluster.
"""

import contextlib
import os


def begin(run):
    """Whether nobody has begun with this run before: its MoM, or a server that gives it up."""
    os.makedirs(run, exist_ok=True)
    try:
        os.close(os.open(f"{run}/begun", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def register(run, node, session):
    """Note a session on a node before anything runs in it."""
    os.close(os.open(f"{run}/sessions/{node}.{session}", os.O_CREAT | os.O_WRONLY))


def on_nodes(run, nodes=None):
    """The sessions of a run, on these nodes only if any are named."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(f"{run}/sessions"):
            node, _, session = name.rpartition(".")
            if nodes is None or node in nodes:
                yield int(session)


def kill(run, signal, nodes=None):
    """Send a signal to every process of a run, on these nodes only; how many there were."""
    wanted = set(on_nodes(run, nodes))
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")) if wanted else ():
        with contextlib.suppress(OSError, IndexError):
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            if int(fields[3]) in wanted and fields[0] not in "ZX":
                os.kill(int(pid), signal)
                count += 1
    return count
