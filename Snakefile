# One study, end to end: plan → run → collect → analyse → report.
#
#   snakemake --profile profiles/local                       the quickstart study
#   snakemake --profile profiles/local --config study=NAME   config/study/NAME.yaml
#
# The plan is made once, by the main process, when this file is read; every other process reads
# the manifest. An experiment that fails keeps its log and reason, the others finish, the page
# shows it, and the exit code is not 0.

from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

from kvscope.errors import KvscopeError
from kvscope.plan import manifest

min_version("9.0")

STUDY = config.get("study", "quickstart")
RESULTS = Path("results")

try:
    if workflow.is_main_process:
        PLAN = manifest.ensure(STUDY, Path("config"), RESULTS)
    else:
        PLAN = manifest.read(STUDY, RESULTS)
except KvscopeError as error:
    raise WorkflowError(str(error)) from None

EXPERIMENTS = {entry["id"]: entry["resources"] for entry in PLAN["experiments"]}


wildcard_constraints:
    id="[^/]+",


localrules:
    all,


include: "workflow/rules/run.smk"
include: "workflow/rules/collect.smk"
include: "workflow/rules/analyse.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        f"results/studies/{STUDY}/report.html",


# The page of a study whose experiments did not all finish.
onerror:
    shell("kvscope report {STUDY}")
