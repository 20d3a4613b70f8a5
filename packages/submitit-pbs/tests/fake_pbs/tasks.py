"""pbs_tmrsh and mpiexec: processes on the nodes of the job that calls them."""

import contextlib
import getopt
import os
import signal
import sys
import time

from fake_pbs import sessions

NOT_STARTED = 254
BARE = ("HOME", "PBS_JOBID", "PBS_ENVIRONMENT", "NCPUS", "OMP_NUM_THREADS")


def hosts_of_job():
    with open(os.environ["PBS_NODEFILE"]) as file:
        return list(dict.fromkeys(file.read().split()))


def is_lost(cluster, node):
    return os.path.exists(f"{cluster}/lost/{node}")


def spawn(cluster, node, words, environment, directory="."):
    """Start a process on a node; its pid, or None if the node does not answer."""
    if is_lost(cluster, node):
        return None
    run = os.environ["PBS_JOBCOOKIE"]
    pid = os.fork()
    if pid:
        return pid
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.chdir(directory)
        sessions.register(run, node, os.getpid())
        os.execvpe(words[0], words, {**environment, "FAKE_PBS_NODE": node, "PBS_JOBCOOKIE": run})
    except OSError as error:
        os.write(2, f"{words[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_STARTED)


def hang():
    """Make requests to a lost node wait for ever."""
    while True:
        time.sleep(60)


def code_of(status):
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def tmrsh(cluster):
    """pbs_tmrsh HOST COMMAND…: with a bare environment, in the home directory.

    The exit code is the command's. The words go to the node as they are; no shell reads them again
    (OpenPBS: src/cmds/pbs_tmrsh.c).
    """
    host, *words = sys.argv[1:]
    if host not in hosts_of_job():
        job = os.environ["PBS_JOBID"]
        sys.stderr.write(f'pbs_tmrsh: host "{host}" is not a node in job <{job}>\n')
        sys.exit(255)
    environment = {name: os.environ[name] for name in BARE if name in os.environ}
    environment["PATH"] = f"/usr/local/bin:/usr/bin:/bin:{cluster}/bin"
    environment["PBS_NODENUM"] = str(hosts_of_job().index(host))
    if environment["PBS_NODENUM"] != "0":
        environment["PBS_NODEFILE"] = os.environ["PBS_NODEFILE"]
    pid = spawn(cluster, host, words, environment, os.environ["HOME"])
    if pid is None:
        hang()
    _, status = os.waitpid(pid, 0)
    if is_lost(cluster, host):
        hang()
    sys.exit(code_of(status))


LONG = (
    *("np=", "ppn=", "hosts=", "hostfile=", "cpu-bind=", "env=", "depth=", "line-buffer", "label"),
    *("no-abort-on-failure", "envall", "genv=", "mem-bind=", "gpu-bind="),
)


def no_mpiexec(cluster):
    """PBS's own mpiexec, which looks for another mpiexec."""
    for directory in os.environ.get("PBS_O_PATH", "").split(":"):
        path = f"{directory}/mpiexec"
        if os.access(path, os.X_OK) and not os.path.samefile(directory, f"{cluster}/bin"):
            os.execv(path, [path, *sys.argv[1:]])
    sys.stderr.write("mpiexec: unexpected error - no non-PBS mpiexec in PBS_O_PATH\n")
    sys.exit(1)


def mpiexec(cluster):
    """mpiexec -n N --ppn P COMMAND…: ranks in blocks of P over the nodes, with the environment."""
    options, words = getopt.getopt(sys.argv[1:], "n:d:l", LONG)
    given = {name.lstrip("-"): value for name, value in options}
    hosts = hosts_of_job()
    if "hosts" in given:
        hosts = given["hosts"].split(",")
    if "hostfile" in given:
        with open(given["hostfile"]) as file:
            hosts = list(dict.fromkeys(file.read().split()))
    per_node = int(given.get("ppn", 1))
    count = int(given.get("n") or given.get("np") or len(hosts) * per_node)
    if count > per_node * len(hosts):
        sys.stderr.write(f"mpiexec: not enough slots for {count} ranks\n")
        sys.exit(1)
    extra = dict(v.partition("=")[::2] for name, v in options if name in ("--env", "--genv"))
    node_of = {}

    def forward(number, frame):
        for pid in list(node_of):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, forward)
    unreachable = False
    for rank in range(count):
        variables = {"PMI_RANK": rank, "PMI_LOCAL_RANK": rank % per_node, "PMI_SIZE": count}
        environment = {**os.environ, **extra, **{k: str(v) for k, v in variables.items()}}
        pid = spawn(cluster, hosts[rank // per_node], words, environment)
        unreachable |= pid is None
        if pid:
            node_of[pid] = hosts[rank // per_node]
    worst = 0
    while node_of:
        pid, status = os.wait()
        node = node_of.pop(pid)
        unreachable |= is_lost(cluster, node)
        worst = max(worst, code_of(status))
        if worst and "no-abort-on-failure" not in given:
            forward(signal.SIGKILL, None)
    if unreachable:
        hang()
    sys.exit(worst)
