"""The MoM of one run of a job: starts its script on the first node and notes how it ended.

`main(DIRECTORY)` reads DIRECTORY/run.json and writes DIRECTORY/exit when the script has ended. It
does not need the server. When the script is gone, so is everything that the job runs on other
nodes.
"""

import contextlib
import json
import os
import shutil
import signal
import time

from fake_pbs import sessions

KILLED = 256


def main(run):
    with open(f"{run}/run.json") as file:
        plan = json.load(file)
    started = os.pipe()
    script = os.fork()
    if script == 0:
        begin(run, plan, started)
    os.close(started[0])
    sessions.register(run, plan["nodes"][0], script)
    os.write(started[1], b"go")
    os.close(started[1])
    _, status = os.waitpid(script, 0)
    while sessions.kill(run, signal.SIGKILL):
        time.sleep(0.01)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    shutil.rmtree(plan["environment"]["TMPDIR"], ignore_errors=True)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else KILLED + os.WTERMSIG(status)
    with open(f"{run}/exit.new", "w") as file:
        file.write(str(code))
    os.replace(f"{run}/exit.new", f"{run}/exit")


def begin(run, plan, started):
    """Become the job's script, in a session of its own."""
    os.close(started[1])
    os.setsid()
    os.read(started[0], 2)
    os.close(started[0])
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
