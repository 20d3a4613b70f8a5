"""Job scripts: requests to PBS, and the lines that start submitit in the job."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

SHORTEST_WARNING_S = 1

# Of a resubmitted job: the id under which submitit knows it, and the number of its attempt.
JOB_ID_VARIABLE = "SUBMITIT_PBS_JOB_ID"
ATTEMPT_VARIABLE = "SUBMITIT_PBS_ATTEMPT"


# A second word or line would be an option of its own.
ONE_WORD = ("queue", "account", "chunk", "mem", "select", "place", "filesystems", "keep", "umask")


@dataclass(frozen=True)
class Parameters:
    """Parameters of `PBSExecutor.update_parameters`; those of AutoExecutor begin with `pbs_`.

    Attributes
    ----------
    job_name
        `-N`: letters, digits and `_.-+`, 230 characters at most
    queue, account
        `-q`, `-A`; None leaves the choice to the server
    walltime
        minutes, or "HH:MM:SS" (AutoExecutor: `timeout_min`)
    nodes
        how many chunks `select` has; one process of submitit runs, on the first node
    chunk
        what is asked of each node, e.g. "system=polaris" or "ncpus=64:ngpus=4"
    cpus_per_task, gpus_per_node, mem
        added to each chunk as ncpus, ngpus and mem ("256gb"); None adds nothing
    tasks_per_node
        1: submitit's process starts others itself, with mpiexec
    select
        the whole `-l select=`, in place of all that `nodes` and the following say
    place
        `-l place=`
    filesystems
        `-l filesystems=`, e.g. "home:eagle"
    resources
        further `-l NAME=VALUE`
    rerunnable
        `-r`: whether PBS runs the job again after a preemption or the loss of its first node
    keep
        `-k`: "doe" writes PBS's own output file directly to its place
    umask
        `-W umask=`: PBS's own is 077
    array_parallelism
        how many sub-jobs of an array may run at once; 0 leaves it to the server
    signal_delay_s
        seconds between USR2 and the end of the walltime, for checkpoints; 0 sends no USR2
    setup, teardown
        shell lines before and after submitit's process
    stderr_to_stdout
        one log for both
    directives
        further options of qsub, each written behind `#PBS `
    """

    job_name: str = "submitit"
    queue: str | None = None
    account: str | None = None
    walltime: float | str = 5.0
    nodes: int = 1
    chunk: str | None = None
    cpus_per_task: int | None = None
    gpus_per_node: int | None = None
    mem: str | None = None
    tasks_per_node: int = 1
    select: str | None = None
    place: str | None = "scatter"
    filesystems: str | None = None
    resources: Mapping[str, object] = field(default_factory=dict)
    rerunnable: bool = True
    keep: str | None = "doe"
    umask: str | None = "022"
    array_parallelism: int = 0
    signal_delay_s: int = 90
    setup: Sequence[str] = ()
    teardown: Sequence[str] = ()
    stderr_to_stdout: bool = False
    directives: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_+][\w.+-]{0,229}", self.job_name, re.ASCII):
            raise ValueError(
                f"job_name {self.job_name!r} is not one that qsub -N takes: letters, digits and"
                " _.-+, 230 characters at most"
            )
        if self.tasks_per_node != 1:
            raise ValueError(
                f"tasks_per_node={self.tasks_per_node}: on PBS submitit runs one process a job;"
                " start others from it, with mpiexec"
            )
        if self.nodes < 1:
            raise ValueError(f"nodes={self.nodes} is not a number of nodes: 1 or more")
        if self.walltime_s <= 0:
            raise ValueError(f"walltime={self.walltime!r} is no time: minutes, or 'HH:MM:SS'")
        for name in ONE_WORD:
            value = getattr(self, name)
            if value is not None and not re.fullmatch(r"\S+", str(value)):
                raise ValueError(f"{name} is {value!r} but must be one word")
        for name in ("setup", "teardown", "directives"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is a list of lines, not {getattr(self, name)!r}")

    @property
    def walltime_s(self) -> int:
        """The walltime in seconds."""
        if not isinstance(self.walltime, str):
            return round(60 * self.walltime)
        match = re.fullmatch(r"(\d+):([0-5]\d):([0-5]\d)", self.walltime)
        if not match:
            raise ValueError(f"walltime={self.walltime!r} is not 'HH:MM:SS' nor minutes")
        hours, minutes, seconds = map(int, match.groups())
        return 3600 * hours + 60 * minutes + seconds

    @property
    def select_statement(self) -> str:
        """The value of `-l select=`."""
        if self.select:
            return self.select
        amounts = {"ncpus": self.cpus_per_task, "ngpus": self.gpus_per_node, "mem": self.mem}
        parts = [f"{name}={value}" for name, value in amounts.items() if value is not None]
        return ":".join([str(self.nodes), *([str(self.chunk)] if self.chunk else []), *parts])


PARAMETER_NAMES = tuple(parameter.name for parameter in fields(Parameters))


def directives(parameters: Parameters, output: Path, array_size: int | None = None) -> list[str]:
    """The `#PBS` lines of a job, or of an array of `array_size` jobs.

    `output` is an existing directory: without one PBS holds the job after 21 attempts to start it.
    Never `-V`: functions that bash exports make some versions of qstat print invalid JSON.
    """
    p = parameters
    resources = {
        "select": p.select_statement,
        "place": p.place,
        "walltime": "{:02d}:{:02d}:{:02d}".format(*_clock(p.walltime_s)),
        "filesystems": p.filesystems,
        **p.resources,
    }
    lines = [f"-N {p.job_name}"]
    lines += [f"-q {p.queue}"] if p.queue else []
    lines += [f"-A {p.account}"] if p.account else []
    lines += [f"-l {name}={value}" for name, value in resources.items() if value is not None]
    lines += [f"-r {'y' if p.rerunnable else 'n'}"]
    lines += [f"-k {p.keep}"] if p.keep else []
    lines += [f"-W umask={p.umask}"] if p.umask else []
    lines += ["-j oe", f"-o {shlex.quote(str(output))}/"]
    if array_size is not None:
        throttle = f"%{p.array_parallelism}" if p.array_parallelism else ""
        lines += [f"-J 0-{array_size - 1}{throttle}"]
    return [f"#PBS {line}" for line in [*lines, *p.directives]]


def script(
    parameters: Parameters,
    command: str,
    folder: Path,
    output: Path,
    directory: Path,
    array_size: int | None = None,
) -> str:
    """The text of a job script that runs submitit's `command`.

    Parameters
    ----------
    folder
        submitit's folder, in which `%j`, `%A` and `%a` stand for ids that only the job knows
    output
        where PBS writes what the script itself says
    directory
        where the command runs; PBS starts scripts in the home directory
    """
    p = parameters
    log = "log.out" if p.stderr_to_stdout else "log.err"
    lines = [
        "#!/bin/bash",
        *directives(p, output, array_size),
        "",
        "# the job's id as submitit writes it: 87, or 87_2 in an array",
        "array_id=${PBS_JOBID%%[.[]*}",
        "job_id=$array_id${PBS_ARRAY_INDEX:+_$PBS_ARRAY_INDEX}",
        f"job_id=${{{JOB_ID_VARIABLE}:-$job_id}}",
        "array_id=${job_id%%_*}",
        f"folder={_expanded(folder)}",
        'mkdir -p "$folder"',
        f'exec >>"$folder/${{job_id}}_0_log.out" 2>>"$folder/${{job_id}}_0_{log}"',
        f"cd {shlex.quote(str(directory))} || exit",
        "export SUBMITIT_EXECUTOR=pbs",
        "",
        *_CLAIM,
        "",
        *_MEND,
        "",
        "# PBS ends a job when its script is gone: this one waits for submitit's process",
        "trap stopped=yes TERM",
        "trap : USR2",
        *p.setup,
        '[ -z "$stopped" ] || exit 143',
        _warned(command, p),
        "status=$?",
        *p.teardown,
        "exit $status",
    ]
    return "\n".join(lines) + "\n"


# Two controllers may have submitted one attempt. A requeued run of the same job may go on.
_CLAIM = (
    f'if [ -n "${{{ATTEMPT_VARIABLE}:-}}" ]; then',
    f'    claim="$folder/${{job_id}}_attempt_${ATTEMPT_VARIABLE}"',
    '    ( set -o noclobber; echo "$PBS_JOBID" >"$claim" ) 2>/dev/null',
    '    if [ "$(cat "$claim")" != "$PBS_JOBID" ]; then',
    '        echo "this attempt of job $job_id is run by $(cat "$claim")" >&2',
    "        exit 0",
    "    fi",
    "fi",
)

# submitit does not write what another run was writing when it was killed. That run may have been
# killed between the removal of the old pickle and the naming of the new one.
_MEND = (
    'pickle="$folder/${job_id}_submitted.pkl"',
    '[ -e "$pickle" ] || [ ! -e "$pickle.save_tmp" ] || mv "$pickle.save_tmp" "$pickle"',
    'rm -f "$folder/${job_id}"_*.save_tmp',
)


def _warned(command: str, p: Parameters) -> str:
    """The command, which is sent USR2 some time before the end of the walltime.

    PBS has no such option. The time that the lines of `setup` took counts.
    """
    if not p.signal_delay_s:
        return command
    before = max(SHORTEST_WARNING_S, p.walltime_s - p.signal_delay_s)
    delay = f"$(( SECONDS < {before} ? {before} - SECONDS : {SHORTEST_WARNING_S} ))"
    return f'timeout --foreground --preserve-status --signal=USR2 "{delay}" {command}'


def _expanded(folder: Path) -> str:
    """A folder as a shell word in which the ids are filled in."""
    variables = {"%j": '"$job_id"', "%A": '"$array_id"', "%a": '"${job_id#*_}"', "%t": "0"}
    parts = re.split(r"(%[jAat])", str(folder))
    return "".join(variables[p] if p in variables else shlex.quote(p) if p else "" for p in parts)


def _clock(seconds: int) -> tuple[int, int, int]:
    return seconds // 3600, seconds // 60 % 60, seconds % 60
