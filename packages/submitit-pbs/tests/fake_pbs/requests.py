"""Commands at the server: (server, request) to (stdout, stderr, exit code)."""

import re
import signal

from fake_pbs import answers, options, sessions

# Exit codes are the low byte of PBS's error numbers.
USAGE, HOOK, FINISHED, LIMIT, UNKNOWN_JOB = 2, 32, 35, 38, 153
NOT_ALLOWED, WRONG_STATE, UNKNOWN_QUEUE, VIOLATES, NO_ROUTE = 159, 168, 170, 188, 191
MAY_NOT_ENTER = 174


class Refused(Exception):
    """A command's message on stderr, and its exit code."""

    def __init__(self, words, code):
        super().__init__(words)
        self.words, self.code = words, code


def command(do):
    """A function of (server, request) that returns stdout or raises Refused."""

    def answer(server, request):
        try:
            return do(server, request), "", 0
        except Refused as refused:
            return "", f"{request['command']}: {refused.words}\n", refused.code
        except options.BadDirective as error:
            return "", f"{request['command']}: {error}\n", 1
        except options.Usage as usage:
            return "", f"usage: {request['command']}: {usage}\n", USAGE

    return answer


# ------------------------------------------------------------------------ qsub


@command
def qsub(server, request):
    from fake_pbs.server import Job

    def read(path):
        try:
            with open(path if path.startswith("/") else f"{request['directory']}/{path}") as file:
                return file.read()
        except OSError:
            raise Refused("script file:: No such file or directory", 1) from None

    asked = options.Submission(request["words"], request["stdin"], read)
    check_hooks(asked)
    queue = asked.options.get("q", server.config["default_queue"])
    if queue not in server.queues:
        raise Refused("Unknown queue", UNKNOWN_QUEUE)
    if server.queues[queue].get("from_route_only"):
        raise Refused("Access to queue is denied", MAY_NOT_ENTER)
    indices, parallel = asked.indices
    number = server.last_id + 1
    job = Job(
        f"{number}[]" if indices else f"{number}",
        attributes_of(asked, request, queue, server),
        nodes=asked.nodes,
        walltime_s=asked.walltime_s,
        script=asked.script,
        is_command=asked.is_command,
        environment=environment_of(asked, request, queue),
        umask=int(asked.options.get("W umask", "077"), 8),
        parallel=parallel or 0,
    )
    check_limits(server, queue, job, len(indices) if indices else 1)
    if indices:
        add_array(server, job, indices, asked.options["J"])
    server.add(job)
    return answers.full_id(job.id, server.name) + "\n"


def check_hooks(asked):
    """Check a job by the rules of Polaris's hook."""
    if "A" not in asked.options:
        raise Refused("Account_Name is required to be set.", HOOK)
    for name in ("filesystems", "walltime"):
        if name not in asked.resources:
            raise Refused(f"Resource: {name} is required to be set.", HOOK)


def check_limits(server, queue, job, count):
    rules = server.queues[queue]
    if answers.limits_violated(rules, job):
        raise Refused("Job violates queue and/or server resource limits", VIOLATES)
    routes = rules.get("routes", ())
    if routes and all(answers.limits_violated(server.queues[name], job) for name in routes):
        raise Refused("Job rejected by all possible destinations", NO_ROUTE)
    if words := server.full(queue, job, count):
        raise Refused(words, LIMIT)


def environment_of(asked, request, queue):
    """Environment of a job: PBS_O_…, the variables that -v names, everything with -V."""
    outer = request["environment"]
    names = ("HOME", "LOGNAME", "PATH", "SHELL", "LANG")
    result = {f"PBS_O_{name}": outer[name] for name in names if name in outer}
    result |= {"PBS_O_WORKDIR": request["directory"], "PBS_O_QUEUE": queue}
    for part in filter(None, asked.options.get("v", "").split(",")):
        name, given, value = part.partition("=")
        if given or name in outer:
            result[name] = value if given else outer[name]
    return {**outer, **result} if "V" in asked.options else result


def attributes_of(asked, request, queue, server):
    owner = f"{request['user']}@localhost"
    here, name, now = request["directory"], asked.name, answers.date()
    output = asked.options.get("o", "")
    return {
        "Job_Name": name,
        "Job_Owner": owner,
        "job_state": "Q",
        "queue": queue,
        "server": server.name,
        "Account_Name": asked.options["A"],
        "Checkpoint": "u",
        "ctime": now,
        "Error_Path": f"localhost:{asked.options.get('e', '')}",
        "Hold_Types": "n",
        "Join_Path": asked.options.get("j", "n"),
        "Keep_Files": "doe",
        "Mail_Points": "a",
        "mtime": now,
        "Output_Path": f"localhost:{output if output[:1] in ('', '/') else here + '/' + output}",
        "Priority": "0",
        "qtime": now,
        "Rerunable": "False" if asked.options.get("r") == "n" else "True",
        **{f"Resource_List.{k}": v for k, v in sorted(asked.resources.items())},
        "Resource_List.nodect": str(asked.nodes),
        "Resource_List.walltime": options.clock(asked.walltime_s),
        "substate": "10",
        "Variable_List": f"PBS_O_HOME=/home/{request['user']},PBS_O_WORKDIR={here}",
        "etime": now,
        "umask": str(int(asked.options.get("W umask", "077"))),
        "eligible_time": "00:00:00",
        "Submit_arguments": asked.arguments,
        "project": asked.options["A"],
        "Submit_Host": "localhost",
    }


def add_array(server, array, indices, text):
    from fake_pbs.server import Job

    array.attributes |= {"array": "True", "array_indices_submitted": text.split("%")[0]}
    for index in indices:
        own = {"array_id": answers.full_id(array.id, server.name), "array_index": str(index)}
        left_out = ("array", "array_indices_submitted")
        shared = {k: v for k, v in array.attributes.items() if k not in left_out}
        sub = {**vars(array), "array": array.id}
        known = {k: v for k, v in sub.items() if k not in ("id", "attributes")}
        server.add(Job(array.id.replace("[]", f"[{index}]"), shared | own, **known))


# ------------------------------------------------------------------------ qstat, qselect


def qstat(server, request):
    try:
        pairs, names = options.split(request["words"], "aD:EfF:GHiJMnpqQrsStT1u:wxBL")
    except options.Usage as usage:
        return "", f"usage: qstat: {usage}\n", USAGE
    given = dict(pairs)
    form = given.get("F", "plain") if "f" in given else "table"
    separator = given.get("D", "|")
    if "Q" in given:
        chosen = [(n, server.queues[n]) for n in names or server.queues if n in server.queues]
        records = [(name, answers.queue_attributes(queue)) for name, queue in chosen]
        heads = ("Queue", server.name)
        return answers.written("Queue", records, form, separator, heads), "", 0
    result, errors, code = [], "", 0
    for name in names or [job_id for job_id in server.jobs if "]" not in job_id.replace("[]", "")]:
        job = server.jobs.get(short(name))
        full = answers.full_id(short(name), server.name)
        if job is None:
            errors, code = errors + f"qstat: Unknown Job Id {full}\n", UNKNOWN_JOB
        elif job.is_finished and "x" not in given and "H" not in given:
            if names:
                words = "Job has finished, use -x or -H to obtain historical job information"
                errors, code = errors + f"qstat: {full} {words}\n", FINISHED
        else:
            result.append(job)
            if "t" in given and job.attributes.get("array"):
                result += server.subjobs(job)
    if form == "table":
        return answers.table(result, server.name) if result else "", errors, code
    records = [(answers.full_id(job.id, server.name), job.attributes) for job in result]
    heads = ("Job Id", server.name)
    return answers.written("Jobs", records, form, separator, heads), errors, code


@command
def qselect(server, request):
    given = dict(options.split(request["words"], "A:a:c:h:HJl:N:p:q:r:s:t:Tu:xP:")[0])
    result = ""
    for job in server.jobs.values():
        a = job.attributes
        if (
            (not job.is_finished or "x" in given)
            and (job.array is None or "T" in given)
            and given.get("N") in (None, a["Job_Name"])
            and ("u" not in given or a["Job_Owner"].split("@")[0] in given["u"].split(","))
            and (job.state in given.get("s", job.state))
        ):
            result += answers.full_id(job.id, server.name) + "\n"
    return result


# ------------------------------------------------------------------------ qdel, qsig, qrerun


def each_job(code_of_words):
    """A command over jobs: what fails is said of each, and the last failure is the exit code."""

    def answer(server, request):
        errors, last = "", 0
        letters = {"qdel": "W:x", "qsig": "s:", "qrerun": "W:"}[request["command"]]
        given, names = options.split(request["words"], letters)
        for name in names:
            try:
                code_of_words(server, request, dict(given), name)
            except Refused as refused:
                full = answers.full_id(short(name), server.name)
                errors += f"{request['command']}: {refused.words} {full}\n"
                last = refused.code
        return "", errors, last

    return answer


def known_job(server, request, name):
    job = server.jobs.get(short(name))
    if job is None:
        raise Refused("Unknown Job Id", UNKNOWN_JOB)
    if job.is_finished:
        raise Refused("Job has finished", FINISHED)
    if job.attributes["Job_Owner"].split("@")[0] != request["user"]:
        raise Refused("Unauthorized Request ", NOT_ALLOWED)
    return job


@each_job
def qdel(server, request, given, name):
    job = known_job(server, request, name)
    server.delete(job, f"{request['user']}@localhost")


@each_job
def qsig(server, request, given, name):
    job = known_job(server, request, name)
    if job.state != "R":
        raise Refused("Request invalid for state of job", WRONG_STATE)
    number = getattr(signal, f"SIG{given.get('s', 'TERM').removeprefix('SIG')}")
    sessions.kill(server.run_of(job), number)


@each_job
def qrerun(server, request, given, name):
    raise Refused("Unauthorized Request ", NOT_ALLOWED)


def short(name):
    """A job's id without the server's name."""
    return re.sub(r"\..*$", "", name)


# ------------------------------------------------------------------------ what tests do to it


@command
def control(server, request):
    """Events of a cluster: words are an event and its object."""
    event, *rest = request["words"]
    if event == "lose":
        server.lose(rest[0])
    elif event == "restore":
        server.restore(rest[0])
    elif event == "walltime":  # as an operator's qalter
        server.jobs[rest[0]].walltime_s = int(rest[1])
    elif event == "preempt":
        server.end(server.jobs[rest[0]], "preempt", "")
    elif event == "forget":
        server.active.pop(rest[0], None)
        server.jobs.pop(rest[0])
    elif event == "configure":
        server.config[rest[0]] = float(rest[1])
    elif event == "counts":
        return repr(server.counts)
    return ""


REQUESTS = {
    "qsub": qsub,
    "qstat": qstat,
    "qdel": qdel,
    "qsig": qsig,
    "qrerun": qrerun,
    "qselect": qselect,
    "control": control,
}
