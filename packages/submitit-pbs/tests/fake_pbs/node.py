"""The MoM of one run of a job: starts its script on the first node and notes how it ended.

`main(DIRECTORY)` reads DIRECTORY/run.json and writes DIRECTORY/exit when the job is over. It does
not need the server. PBS starts a login shell that starts the script: a signal to the job ends this
shell, whatever the script makes of it, and a script that dies of a signal has the exit code that
the shell gives it. When the first node's processes are gone, so is everything that the job runs on
other nodes.
"""

import contextlib
import json
import os
import shutil
import signal
import time

from fake_pbs import sessions

KILLED = 256
DIED = 128
SOON_S = 0.1  # after a signal other than TERM the remaining processes are killed at once


def main(run):
    if not sessions.begin(run):
        return
    with open(f"{run}/run.json") as file:
        plan = json.load(file)
    started = os.pipe()
    shell = os.fork()
    if shell == 0:
        begin(run, plan, started)
    os.close(started[0])
    sessions.register(run, plan["nodes"][0], shell)
    os.write(started[1], b"go")
    os.close(started[1])
    _, status = os.waitpid(shell, 0)
    if os.WIFSIGNALED(status):
        await_ends(run, plan, os.WTERMSIG(status))
    while sessions.kill(run, signal.SIGKILL):
        time.sleep(0.01)
        reap()
    shutil.rmtree(plan["environment"]["TMPDIR"], ignore_errors=True)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else KILLED + os.WTERMSIG(status)
    with open(f"{run}/exit.new", "w") as file:
        file.write(str(code))
    os.replace(f"{run}/exit.new", f"{run}/exit")


def await_ends(run, plan, number):
    """Wait for what the login shell has left on the first node; TERM leaves it some time."""
    until = time.monotonic() + (plan["kill_delay_s"] if number == signal.SIGTERM else SOON_S)
    while time.monotonic() < until and sessions.kill(run, 0, plan["nodes"][:1]):
        time.sleep(0.02)
        reap()


def reap():
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def begin(run, plan, started):
    """Become the job's login shell, in a session of its own, and start the script."""
    os.close(started[1])
    os.setsid()
    os.read(started[0], 2)
    os.close(started[0])
    if not plan["is_command"]:
        script = os.fork()
        if script:
            _, status = os.waitpid(script, 0)
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else DIED + os.WTERMSIG(status)
            os._exit(code)
    os.umask(plan["umask"])
    out = os.open(plan["stdout"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666)
    error = out
    if plan["stderr"] != plan["stdout"]:
        error = os.open(plan["stderr"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(error, 2)
    os.closerange(3, 64)
    os.chdir(plan["directory"])
    os.execve(plan["shell"], [plan["shell"], f"{run}/script"], plan["environment"])
