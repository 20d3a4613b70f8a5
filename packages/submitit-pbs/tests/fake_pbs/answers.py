"""Answers of the server: ids, dates, paths, limits, and the forms of qstat."""

import json
import os
import re
import time

WAITING = "QHWT"


def order(job_id):
    """Jobs in the order of their submission, an array before its sub-jobs."""
    number, index = re.fullmatch(r"(\d+)(?:\[(\d*)\])?", job_id).groups()
    return int(number), -1 if not index else int(index)


def full_id(job_id, server):
    return f"{job_id}.{server}"


def date():
    return time.strftime("%a %b %d %H:%M:%S %Y")


def output_paths(job):
    """The files of a run's standard output and error."""
    owner_directory = job.attributes["Variable_List"].partition("PBS_O_WORKDIR=")[2].split(",")[0]
    number = "{}{}".format(order(job.id)[0], "" if not job.array else f".{order(job.id)[1]}")

    def path(attribute, letter, suffix):
        text = job.attributes[attribute].rpartition(":")[2]
        if not text:
            return f"{owner_directory}/{job.attributes['Job_Name']}.{letter}{number}"
        if text.endswith("/") or os.path.isdir(text):
            full = full_id(job.id, job.attributes["server"])
            return f"{text.rstrip('/')}/{full}.{suffix}"
        return text.replace("^array_index^", job.attributes.get("array_index", ""))

    out = path("Output_Path", "o", "OU")
    return out, out if job.attributes["Join_Path"] == "oe" else path("Error_Path", "e", "ER")


def limits_violated(queue, job):
    """Whether a job has too few or too many nodes, or too short or long a walltime, for a queue."""
    return not (
        queue["min_nodes"] <= job.nodes <= queue["max_nodes"]
        and queue.get("min_walltime_s", 0) <= job.walltime_s <= queue["max_walltime_s"]
    )


def written(kind, records, form, separator, names):
    """Records of jobs or queues as `-f` prints them: plain, dsv or json."""
    if form == "json":
        body = {name: nested(attributes) for name, attributes in records}
        head = {"timestamp": int(time.time()), "pbs_version": "23.06.06", "pbs_server": names[1]}
        return json.dumps({**head, kind: body}, indent=4) + "\n"
    text = ""
    for name, attributes in records:
        if form == "dsv":
            pairs = (f"{key}={value}" for key, value in attributes.items())
            text += separator.join([f"{names[0]}: {name}", *pairs]) + "\n"
        else:
            text += f"{names[0]}: {name}\n"
            text += "".join(folded(f"    {k} = {v}") for k, v in attributes.items()) + "\n"
    return text


def nested(attributes):
    """`Resource_List.walltime` as the entry `walltime` of `Resource_List`."""
    result = {}
    for name, value in attributes.items():
        outer, _, inner = name.partition(".")
        if inner:
            result.setdefault(outer, {})[inner] = value
        else:
            result[name] = int(value) if re.fullmatch(r"-?\d+", value) else value
    return result


def folded(line, width=79):
    lines = [line[:width]]
    lines += ["\t" + line[i : i + width - 8] for i in range(width, len(line), width - 8)]
    return "\n".join(lines) + "\n"


def table(jobs, server):
    """qstat without -f."""
    text = "Job id            Name             User              Time Use S Queue\n"
    text += "----------------  ---------------- ----------------  -------- - -----\n"
    for job in jobs:
        a = job.attributes
        used = a.get("resources_used.walltime", "0")
        user = a["Job_Owner"].split("@")[0]
        name = full_id(job.id, server)
        row = f"{name[:16]:<17} {a['Job_Name'][:15]:<16} {user[:15]:<16} "
        text += f"{row}{used:>9} {job.state} {job.queue}\n"
    return text


def queue_attributes(queue):
    """Attributes of a queue in `qstat -Qf`."""
    hours = "{:02d}:{:02d}:00".format
    result = {
        "queue_type": "Route" if "routes" in queue else "Execution",
        "resources_max.nodect": str(queue["max_nodes"]),
        "resources_max.walltime": hours(queue["max_walltime_s"] // 3600, 0),
        "resources_min.nodect": str(queue["min_nodes"]),
        "enabled": "True",
        "started": "True",
    }
    if "min_walltime_s" in queue:
        result["resources_min.walltime"] = hours(0, queue["min_walltime_s"] // 60)
    if queue.get("from_route_only"):
        result["from_route_only"] = "True"
    if "routes" in queue:
        result["route_destinations"] = ",".join(queue["routes"])
    if "priority" in queue:
        result["Priority"] = str(queue["priority"])
    named = {
        "max_run": "max_run",
        "max_queued": "max_queued",
        "max_waiting": "queued_jobs_threshold",
    }
    for name, attribute in named.items():
        for kind, number in queue.get(name, {}).items():
            result[attribute] = f"[{kind}:PBS_GENERIC={number}]"
    return result
