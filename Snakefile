# One study, end to end: plan → run → collect → analyse → report.
#
#   snakemake                                                 the quickstart study, here
#   snakemake --profile profiles/local --config study=NAME    config/study/NAME.yaml
#     … overrides="model=tiny-gqa seed=1,2"                   the study, or the defaults, with these
#     … remeasure=invalid                                     measure again what is not valid
#
# The plan is made once, by the main process, when this file is read; every other process reads
# the manifest. An experiment that fails keeps its log and reason, the others finish, a page in
# unfinished/ shows it, and the exit code is not 0. The next call makes what is missing.

from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

from kvscope.cli import workflow as stages
from kvscope.base.errors import KvscopeError
from kvscope.plan import batches

min_version("9.0")

RESULTS = Path("results")

try:
    OPTIONS = stages.options(config)
    if workflow.is_main_process:
        PLAN = stages.plan(OPTIONS, Path("config"), RESULTS)
    else:
        PLAN = stages.read_plan(OPTIONS, RESULTS)
except KvscopeError as error:
    raise WorkflowError(str(error)) from None
except KeyboardInterrupt:
    raise WorkflowError("interrupted before the study was planned") from None

STUDY = PLAN["study"]
# On a cluster as many as may be in packs at a time, else as many as this machine runs at a time.
PARTS = batches.parts(PLAN, workflow.nodes, workflow.cores)


wildcard_constraints:
    kind="|".join(batches.KINDS),
    part=r"\d+",
    parts=r"\d+",


# Resources of each machine, not of a whole cluster.
resource_scopes:
    engine="local",
    gpu="local",


localrules:
    all,


include: "workflow/rules/run.smk"
include: "workflow/rules/report.smk"


# The crate is written last: a page without it may be that of `onerror`.
rule all:
    default_target: True
    input:
        f"results/studies/{STUDY}/report.html",
        f"results/studies/{STUDY}/ro-crate-metadata.json",


# `kvscope run` keeps a finished run, unless a new measurement is requested: by -F, -R or -f.
onstart:
    stages.request_forced(workflow.dag, PLAN, OPTIONS, RESULTS)


# The page of an unfinished study shows the results so far, and names what is missing.
onerror:
    shell("kvscope report {STUDY} || true")  # Snakemake itself exits with an error
