"""Run a study on a cluster."""

import argparse
import sys
from typing import Any

from kvscope.api.commands import EXIT_DONE, argument, arguments, command, flag
from kvscope.api.errors import BadInput, KvscopeError
from kvscope.api.words import quantities
from kvscope_cluster import require_packages


@command(
    (
        "study=quickstart --cluster local",
        "study=quickstart device=cuda --cluster slurm --queue gpu",
        "study=quickstart device=cuda --profile profiles/polaris --dry-run",
    ),
    argument(
        "overrides", nargs="+", metavar="OVERRIDE", help=f"study=NAME; {arguments.OVERRIDES_HELP}"
    ),
    argument(
        "--cluster", choices=("pbs", "slurm", "local"), help="not needed with --profile or --site"
    ),
    argument(
        "--profile",
        type=arguments.place,
        metavar="DIR",
        help="a Snakemake profile whose settings of packs hold, like profiles/polaris",
    ),
    argument(
        "--site",
        metavar="NAME | FILE",
        help="nodes and queues: polaris (for pbs), slurm, local, or a YAML file of your own",
    ),
    argument("--account", metavar="PROJECT", help="the project that is charged"),
    argument(
        "--queue",
        action="append",
        default=[],
        metavar="NAME",
        help="a queue or partition to use, several times in order of preference",
    ),
    argument(
        "--length",
        type=arguments.duration("min"),
        metavar="MINUTES",
        help=f"how long a pack shall take, {quantities.DURATION_HELP} (default: 60)",
    ),
    argument("--max-nodes", type=int, metavar="N", help="nodes of one pack at most"),
    argument(
        "--min-fill",
        type=float,
        metavar="SHARE",
        help="share of a pack's GPUs that must be used (default: 0.5)",
    ),
    argument(
        "--setup",
        action="append",
        default=[],
        metavar="LINE",
        help="a shell line on each node before anything else, like 'source envs/polaris.sh'",
    ),
    argument(
        "--options",
        default="",
        metavar="KEY=VALUE,…",
        help="further parameters of submitit, like slurm_qos=high or pbs_filesystems=home:eagle",
    ),
    flag(
        "--dry-run",
        "print every job script, in which only the pack's id will differ, and the node-hours",
    ),
    arguments.RESULTS_DIR,
    arguments.CONFIG_DIR,
    order=130,
)
def submit(given: argparse.Namespace) -> int:
    """Run a study on a cluster without Snakemake: its experiments are packed on nodes.

    Each experiment has a GPU, and the packs are submitted. Called again, it finds what it
    submitted before.
    """
    from kvscope.api.plan import manifest

    if not (given.cluster or given.profile or given.site):
        raise BadInput("where to? --cluster pbs, slurm or local, or --profile profiles/polaris")
    require_packages()
    from kvscope_cluster import submission

    options = submission.Cluster(
        name=given.cluster,
        profile=given.profile,
        site=given.site,
        account=given.account,
        queues=tuple(given.queue),
        length_min=given.length,
        max_nodes=given.max_nodes,
        min_fill=given.min_fill,
        setup=tuple(given.setup),
        options=given.options,
    )
    options.resolve()  # what cannot be is refused before a plan is written
    planned = _planned(given, *manifest.split_study(given.overrides))
    if given.dry_run:
        print("\n".join(submission.preview(planned, given.results, options)))
        return EXIT_DONE
    ended = submission.submit(planned, given.results, options, print)
    if failed := [outcome.key for outcome in ended if not outcome.ok]:
        raise KvscopeError(f"{len(failed)} of {len(ended)} failed: {', '.join(failed)}")
    print(f"next: kvscope report {planned['study']} --results {given.results}")
    return EXIT_DONE


def _planned(given: argparse.Namespace, study: str | None, overrides: list[str]) -> dict[str, Any]:
    """Manifest of the experiments to submit, which a dry run does not write."""
    from kvscope.api.machine import device
    from kvscope.api.plan import manifest

    place = study, given.config_dir, given.results, overrides
    planned = (manifest.preview if given.dry_run else manifest.plan_if_changed)(*place)
    needs = [entry["resources"] for entry in planned["experiments"]]
    if note := manifest.device_note(needs, device()):
        print(f"kvscope: note: {note}", file=sys.stderr)
    return planned
