"""submitit on PBS: `submitit.AutoExecutor(cluster="pbs")`, and PBS's commands as functions.

client.py         submit, status, cancel, signal, find_by_name
status.py         what qstat prints
reasons.py        how a job ended, in words
script.py         parameters and job scripts
executor.py, job.py, watcher.py, environment.py    the four parts of a submitit plugin
resubmission.py   going on after a checkpoint
"""

from submitit_pbs.environment import PBSJobEnvironment
from submitit_pbs.executor import PBSExecutor
from submitit_pbs.job import PBSJob
from submitit_pbs.watcher import PBSInfoWatcher

__all__ = ["PBSExecutor", "PBSInfoWatcher", "PBSJob", "PBSJobEnvironment"]
