"""The server and scheduler: takes commands at a socket, starts jobs, and says what became of them.

Everything that must survive the server is in files: a job in `jobs/ID/job.json`, its runs in
`jobs/ID/run-N/`. So it can be stopped or killed and started again while jobs go on.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

from fake_pbs import answers, sessions
from fake_pbs.options import clock
from fake_pbs.requests import REQUESTS

FAILED_STARTS = 21
UNSTARTED = -3
RERUN = -11
OVER_WALLTIME = -29
PATH = "/usr/local/bin:/usr/bin:/bin"


class Job:
    """A job, sub-job or array: what qstat shows of it, and what only the server knows."""

    def __init__(self, job_id, attributes, **known):
        self.id = job_id
        self.attributes = attributes
        self.nodes = known.get("nodes", 1)
        self.walltime_s = known.get("walltime_s", 0)
        self.script = known.get("script", "")
        self.environment = known.get("environment", {})
        self.umask = known.get("umask", 0o77)
        self.is_command = known.get("is_command", False)  # of `qsub -- COMMAND`: no login shell
        self.started_at = known.get("started_at", 0.0)
        self.not_before = known.get("not_before", 0.0)
        self.assigned = known.get("assigned", [])
        self.ending = known.get("ending")  # {"why", "by", "since"}, once it is being ended
        self.array = known.get("array")  # the array that a sub-job is of
        self.parallel = known.get("parallel", 0)  # of an array: how many may run at once

    @property
    def state(self):
        return self.attributes["job_state"]

    @state.setter
    def state(self, letter):
        self.attributes["job_state"] = letter

    @property
    def queue(self):
        return self.attributes["queue"]

    @property
    def is_finished(self):
        return self.state in "FX"

    @property
    def run_count(self):
        return int(self.attributes.get("run_count", 0))


class Server:
    """The jobs of a cluster, and the rules for them; `clock` gives seconds since 1970."""

    def __init__(self, directory, clock=time.time):
        self.directory = directory
        self.clock = clock
        with open(f"{directory}/config.json") as file:
            self.config = json.load(file)
        self.name = self.config["server"]
        self.queues = self.config["queues"]
        self.nodes = self.config["nodes"]
        self.jobs = {}
        self.active = {}
        self.counts = {}  # how often each command was called
        self.last_id = 0
        self._recover()

    def _recover(self):
        for name in sorted(os.listdir(f"{self.directory}/jobs"), key=answers.order):
            with open(f"{self.directory}/jobs/{name}/job.json") as file:
                self.add(Job(**json.load(file)), saved=True)
        for job in list(self.active.values()):
            if job.state == "R" and sessions.begin(self.run_of(job)):
                self._requeue(job, None)  # the server was killed before the job's script began

    def add(self, job, saved=False):
        """Take a job into the books."""
        self.jobs[job.id] = job
        if not job.is_finished:
            self.active[job.id] = job
        self.last_id = max(self.last_id, answers.order(job.id)[0])
        if not saved:
            self.save(job)

    def save(self, job):
        """Write a job down, so that an answer holds after the server is killed."""
        folder = f"{self.directory}/jobs/{job.id}"
        os.makedirs(folder, exist_ok=True)
        known = {name: value for name, value in vars(job).items() if name != "id"}
        with open(f"{folder}/job.json.new", "w") as file:
            json.dump({"job_id": job.id, **known}, file)
        os.replace(f"{folder}/job.json.new", f"{folder}/job.json")

    # -------------------------------------------------------------------- nodes

    def is_lost(self, node):
        return os.path.exists(f"{self.directory}/lost/{node}")

    def free_nodes(self):
        taken = {node for job in self.active.values() for node in job.assigned}
        return [node for node in self.nodes if node not in taken and not self.is_lost(node)]

    def lose(self, node):
        """Cut a node's power: what ran there is gone, and no one hears of it."""
        open(f"{self.directory}/lost/{node}", "w").close()
        for job in self.active.values():
            if node in job.assigned and job.state == "R":
                if node == job.assigned[0]:
                    self._kill_mom(job)
                sessions.kill(self.run_of(job), signal.SIGKILL, [node])

    def restore(self, node):
        """Bring a node back: it ends the jobs that it was a further node of."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.directory}/lost/{node}")
        for job in self.active.values():
            if node in job.assigned[1:] and job.state == "R":
                number = job.assigned.index(node)
                self.note(job, f"node {number} ({node}) requested job die, code 15009")
                self.end(job, "node", "")

    # -------------------------------------------------------------------- a job's runs

    def run_of(self, job):
        return f"{self.directory}/jobs/{job.id}/run-{job.run_count}"

    def _kill_mom(self, job):
        with contextlib.suppress(OSError, ValueError), open(f"{self.run_of(job)}/mom") as file:
            os.kill(int(file.read()), signal.SIGKILL)

    def note(self, job, words):
        """Note that PBS writes into a job's output when it kills the job."""
        with open(f"{self.run_of(job)}/run.json") as file:
            path = json.load(file)["stderr"]
        with open(path, "a") as file:
            file.write(f"=>> PBS: job killed: {words}\n")

    def start(self, job, nodes):
        """Run a job's script on the first of its nodes."""
        job.attributes["run_count"] = str(job.run_count + 1)
        job.attributes["stime"] = answers.date()
        job.attributes["exec_host"] = "+".join(f"{node}/0" for node in nodes)
        chunks = "+".join(f"({node}:ncpus=1)" for node in nodes)
        job.attributes["exec_vnode"] = chunks
        began = time.strftime("%a %b %d at %H:%M")
        ran = f"Job run at {began} on {chunks}"
        job.attributes["comment"] = ran if len(ran) <= 240 else ran[:240] + "..."
        output = answers.output_paths(job)
        if not all(os.path.isdir(os.path.dirname(path)) for path in output):
            self._start_failed(job)
            return
        job.state = "R"
        job.attributes["substate"] = "42"
        job.started_at = self.clock()
        job.assigned = nodes
        job.ending = None
        self.save(job)  # before anything of the run is there: no other run has its number
        run = self.run_of(job)
        os.makedirs(f"{run}/sessions")
        self._write_run(job, run, nodes, output)
        self.run_script(job)
        if job.array:
            array = self.jobs[job.array]
            array.state = "B"
            array.attributes["comment"] = f"Job Array Began at {began}"

    def run_script(self, job):
        """Start the MoM of a job's present run."""
        run = self.run_of(job)
        program = f"import sys; sys.path.insert(0, {os.path.dirname(os.path.dirname(__file__))!r})"
        program += f"; from fake_pbs import node; node.main({run!r})"
        mom = subprocess.Popen(
            [sys.executable, "-IS", "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        with open(f"{run}/mom", "w") as file:
            file.write(str(mom.pid))
        mom.returncode = 0  # reaped with all others

    def _write_run(self, job, run, nodes, output):
        with open(f"{run}/nodefile", "w") as file:
            file.write("".join(f"{node}\n" for node in nodes))
        with open(f"{run}/script", "w") as file:
            file.write(job.script)
        scratch = tempfile.mkdtemp(
            prefix=f"pbs.{answers.order(job.id)[0]}."
        )  # short, as it is there
        shell, home = "/bin/bash", os.path.expanduser("~")
        owner = job.attributes["Job_Owner"].split("@")[0]
        environment = {
            **{"HOME": home, "USER": owner, "LOGNAME": owner, "SHELL": shell},
            **job.environment,
            "PATH": f"{self.directory}/mpi:{PATH}:{self.directory}/bin",
            "PBS_ENVIRONMENT": "PBS_BATCH",
            "PBS_JOBCOOKIE": run,
            "PBS_JOBID": answers.full_id(job.id, self.name),
            "PBS_JOBNAME": job.attributes["Job_Name"],
            "PBS_NODEFILE": f"{run}/nodefile",
            "NCPUS": "1",
            "OMP_NUM_THREADS": "1",
            "PBS_NODENUM": "0",
            "PBS_QUEUE": job.queue,
            "TMPDIR": scratch,
            "FAKE_PBS_NODE": nodes[0],
        }
        if job.array:
            environment["PBS_ARRAY_ID"] = answers.full_id(job.array, self.name)
            environment["PBS_ARRAY_INDEX"] = job.attributes["array_index"]
        plan = {
            **{"nodes": nodes, "shell": shell, "directory": home, "umask": job.umask},
            **{"stdout": output[0], "stderr": output[1], "environment": environment},
            **{"kill_delay_s": self.config["kill_delay_s"], "is_command": job.is_command},
        }
        with open(f"{run}/run.json", "w") as file:
            json.dump(plan, file)

    def _start_failed(self, job):
        job.attributes["Exit_status"] = str(UNSTARTED)
        job.not_before = self.clock() + self.config["start_retry_s"]
        if job.run_count >= FAILED_STARTS:
            job.state = "H"
            job.attributes["Hold_Types"] = "s"
            job.attributes["comment"] = "job held, too many failed attempts to run"
        self.save(job)

    # -------------------------------------------------------------------- ends

    def end(self, job, why, by):
        """Begin to end a running job: TERM now on its first node, KILL everywhere later."""
        if job.ending is None:
            job.ending = {"why": why, "by": by, "since": self.clock()}
            if why != "walltime":
                job.attributes["substate"] = "59"
            self.save(job)
            sessions.kill(self.run_of(job), signal.SIGTERM, job.assigned[:1])

    def delete(self, job, by):
        """Delete a job, sub-job or array that has not finished, as qdel does."""
        if job.attributes.get("array"):
            for sub in self.subjobs(job):
                if not sub.is_finished:
                    self.delete(sub, by)
        elif job.state == "R":
            self.end(job, "qdel", by)
        else:
            comment = job.attributes.get("comment", "")
            self._finish(job, None, 91, f"{comment} and terminated".strip())

    def _has_ended(self, job, code):
        """A run is over; `code` as the node saw it, None if no one did."""
        ending, ran = job.ending or {"why": ""}, job.attributes["comment"]
        used = self.clock() - job.started_at
        job.attributes["resources_used.walltime"] = clock(used / self.config["time_scale"])
        if ending["why"] == "walltime":
            self._finish(job, OVER_WALLTIME, 93, f"{ran} and exceeded resource walltime")
        elif ending["why"] == "qdel":
            self._finish(job, code, 91, f"{ran} and terminated by {ending['by']}")
        elif ending["why"] in ("preempt", "lost") and job.attributes["Rerunable"] == "True":
            self._requeue(job, RERUN if ending["why"] == "preempt" else None)
        elif ending["why"] == "preempt":
            words = f"{ran} and terminated by Scheduler@{self.name}"
            self._finish(job, 271, 91, words)
        elif ending["why"] == "lost":
            self._finish(job, -20, 93, f"{ran} and failed")
        elif ending["why"] == "node":
            self._finish(job, 271, 93, f"{ran} and failed")
        else:
            words = "finished" if code == 0 else "failed"
            self._finish(job, code, 92 if code == 0 else 93, f"{ran} and {words}")

    def _requeue(self, job, code):
        job.state = "Q"
        job.attributes["comment"] = "Not Running: Not enough free nodes available"
        job.attributes["substate"] = "10"
        if code is not None:
            job.attributes["Exit_status"] = str(code)
        job.assigned, job.ending = [], None
        job.not_before = self.clock() + self.config["requeue_delay_s"]
        self.save(job)

    def _finish(self, job, code, substate, comment):
        job.state = "X" if job.array else "F"
        job.attributes.update(substate=str(substate), comment=comment)
        job.attributes["obittime"] = answers.date()
        if code is not None:
            job.attributes["Exit_status"] = str(code)
        job.assigned = []
        self.active.pop(job.id, None)
        self.save(job)
        if job.array:
            self._array_goes_on(self.jobs[job.array])

    def subjobs(self, array):
        return [job for job in self.jobs.values() if job.array == array.id]

    def _array_goes_on(self, array):
        members = self.subjobs(array)
        if all(job.is_finished for job in members):
            failed = any(job.attributes.get("Exit_status") != "0" for job in members)
            for job in members:
                job.state = "F"
                self.save(job)
            self._finish(array, int(failed), 92, array.attributes["comment"] + " and finished")

    # -------------------------------------------------------------------- scheduling

    def tick(self):
        """Look at every job that has not finished."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        now = self.clock()
        for job in list(self.active.values()):
            if job.state == "R":
                self._look_at(job, now)
        self._schedule(now)

    def _look_at(self, job, now):
        run = self.run_of(job)
        if self.is_lost(job.assigned[0]) and (job.ending or {}).get("why") != "lost":
            since = os.stat(f"{self.directory}/lost/{job.assigned[0]}").st_mtime
            if now - since > self.config["node_fail_requeue_s"]:
                job.ending = {"why": "lost", "by": "", "since": now}
                sessions.kill(run, signal.SIGKILL)
                self._has_ended(job, None)
            return
        try:
            with open(f"{run}/exit") as file:
                code = int(file.read())
        except FileNotFoundError:
            pass
        else:
            self._has_ended(job, code)
            return
        limit = job.walltime_s * self.config["time_scale"]
        if job.ending is None and now - job.started_at > limit:
            used = (now - job.started_at) / self.config["time_scale"]
            self.note(job, f"walltime {used:.0f} exceeded limit {job.walltime_s}")
            self.end(job, "walltime", "")
        elif job.ending and now - job.ending["since"] > self.config["kill_delay_s"]:
            sessions.kill(run, signal.SIGKILL)

    def _schedule(self, now):
        waiting = [
            job
            for job in self.active.values()
            if job.state == "Q" and not job.attributes.get("array") and job.not_before <= now
        ]
        if not waiting:
            return
        waiting.sort(key=lambda job: -self.queues[job.queue].get("priority", 0))
        running = [job for job in self.active.values() if job.state == "R"]
        free = self.free_nodes()
        kept_back = set()  # queues whose jobs make room for a waiting job
        for job in waiting:
            if job.queue in kept_back:
                continue
            if "routes" in self.queues[job.queue]:
                self._route(job)
            if "routes" in self.queues[job.queue] or self._must_wait(job, running):
                continue
            if job.nodes <= len(free):
                self.start(job, free[: job.nodes])
                if job.state == "R":
                    free = free[job.nodes :]
                    running.append(job)
            else:
                if not job.attributes.get("comment", "").startswith("Not Running"):
                    words = "Not Running: Not enough free nodes available"
                    job.attributes["comment"] = words
                self._preempt_for(job, len(free), running)
                kept_back |= set(self.queues[job.queue].get("preempts", ()))

    def _route(self, job):
        for name in self.queues[job.queue]["routes"]:
            if not answers.limits_violated(self.queues[name], job) and not self.full(name, job):
                job.attributes["queue"] = name
                self.save(job)
                return

    def _must_wait(self, job, running):
        limits = self.queues[job.queue].get("max_run", {})
        same = [other for other in running if other.queue == job.queue] if limits else []
        if any(self._of_same(same, job, kind) >= number for kind, number in limits.items()):
            job.attributes["comment"] = "Not Running: User has reached queue running job limit."
            return True
        parallel = self.jobs[job.array].parallel if job.array else 0
        return bool(parallel and sum(other.array == job.array for other in running) >= parallel)

    def _preempt_for(self, job, free, running):
        queues = self.queues[job.queue].get("preempts", ())
        victims = [other for other in running if other.queue in queues]
        coming = free + sum(len(other.assigned) for other in victims if other.ending)
        for other in sorted(victims, key=lambda other: -other.started_at):
            if coming < job.nodes and other.ending is None:
                self.end(other, "preempt", "")
                coming += len(other.assigned)

    @staticmethod
    def _of_same(jobs, job, kind):
        """How many of these jobs are of the same user ("u") or project ("p")."""
        name = {"u": "Job_Owner", "p": "Account_Name"}[kind]
        return sum(other.attributes[name] == job.attributes[name] for other in jobs)

    def full(self, queue, job, added=1):
        """Why a queue takes no more jobs of this user or project; None if it does."""
        there = [
            other
            for other in self.active.values()
            if other.queue == queue and not other.attributes.get("array")
        ]
        words = {"u": "user", "p": "project"}
        for kind, number in self.queues[queue].get("max_queued", {}).items():
            if self._of_same(there, job, kind) + added > number:
                return f"would exceed queue generic's per-{words[kind]} limit"
        there = [other for other in there if other.state == "Q"]
        for kind, number in self.queues[queue].get("max_waiting", {}).items():
            if self._of_same(there, job, kind) + added > number:
                return f"would exceed queue generic's per-{words[kind]} limit of jobs in 'Q' state"
        return None

    # -------------------------------------------------------------------- commands

    def answer(self, request):
        """Do what a command asks; what it prints, and its exit code."""
        name = request["command"]
        self.counts[name] = self.counts.get(name, 0) + 1
        return REQUESTS[name](self, request)


def serve(directory):
    """Take commands until TERM or INT."""
    listener = listen(directory)
    server = Server(directory)
    listener.settimeout(server.config["tick_s"])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    last = 0.0
    while True:
        with contextlib.suppress(TimeoutError, BrokenPipeError, ConnectionError):
            take(listener, server)
        if time.monotonic() - last >= server.config["tick_s"]:
            server.tick()
            last = time.monotonic()


def listen(directory):
    """The socket at which commands reach the server of a directory."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{directory}/socket")
    listener = socket.socket(socket.AF_UNIX)
    folder = os.open(directory, os.O_RDONLY)
    listener.bind(f"/proc/self/fd/{folder}/socket")
    listener.listen(128)
    return listener


def take(listener, server):
    """Take one command and answer it."""
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(30)
        text = b""
        while not text.endswith(b"\n"):
            text += connection.recv(1 << 16)
        stdout, stderr, code = server.answer(json.loads(text))
        reply = {"stdout": stdout, "stderr": stderr, "returncode": code}
        connection.sendall(json.dumps(reply).encode())
