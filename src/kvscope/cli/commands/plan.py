"""List the experiments of a study."""

import argparse
import json
import sys

from kvscope.base.errors import EXIT_DONE
from kvscope.base.layout import RESULTS
from kvscope.cli.commands.arguments import CONFIG_DIR, OVERRIDES_HELP, argument, flag, path
from kvscope.cli.commands.command import command


@command(
    (
        "study=quickstart",
        "study=quickstart 'seed=1,2' --json",
        "model=tiny-gqa workload=zipf 'cache.blocks=40,80' 'seed=range(1,4)'",
        "study=quickstart --write results",
    ),
    argument(
        "overrides",
        nargs="*",
        metavar="OVERRIDE",
        help=f"study=NAME for config/study/NAME.yaml; {OVERRIDES_HELP}",
    ),
    flag("--json", "print the experiments as JSON"),
    path("--write", "write the manifest and one experiment.yaml per experiment below DIR"),
    CONFIG_DIR,
)
def plan(given: argparse.Namespace) -> int:
    """List the experiments of a study or of a set of overrides, with their expected times.

    Nothing is run.
    """
    from kvscope.cli import packages
    from kvscope.plan import effects, grid, manifest, show
    from kvscope.workload import requests

    study, overrides = manifest.split_study(given.overrides)
    plan = grid.expand(study, overrides, given.config_dir)
    for planned in plan.experiments:
        requests.check(planned.experiment)
    needs = manifest.resources_of(plan, given.write or RESULTS)
    if warning := show.memory_warning(plan):
        print(f"kvscope: warning: {warning}", file=sys.stderr)
    if note := manifest.device_note(needs.values(), packages.device()):
        print(f"kvscope: note: {note}", file=sys.stderr)
    for note in (*plan.notes, *effects.notes(plan)):
        print(f"kvscope: note: {note}", file=sys.stderr)
    if given.write:
        path = manifest.write(plan, given.write)
        name = path.parent.name
        command = f"snakemake --profile profiles/local --config study={name}"
        print(f"{path}: {len(plan.experiments)} experiments; run them: {command}", file=sys.stderr)
    if given.json:
        print(json.dumps(show.as_json(plan, needs), indent=2))
    else:
        show.print_table(plan, needs)
    return EXIT_DONE
