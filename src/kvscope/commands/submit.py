"""Run a study on a cluster."""

import argparse

from kvscope import cluster
from kvscope.commands.command import (
    CONFIG_DIR,
    OVERRIDES_HELP,
    RESULTS_DIR,
    argument,
    command,
    flag,
)
from kvscope.errors import EXIT_DONE, KvscopeError


@command(
    (
        "study=quickstart --cluster local",
        "study=quickstart --cluster slurm --queue gpu",
        "study=quickstart --cluster pbs --account PROJECT --dry-run",
    ),
    argument("overrides", nargs="+", metavar="OVERRIDE", help=f"study=NAME; {OVERRIDES_HELP}"),
    argument("--cluster", required=True, choices=("pbs", "slurm", "local")),
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
        type=float,
        default=60,
        metavar="MINUTES",
        help="how long a pack shall take (default: 60)",
    ),
    argument("--max-nodes", type=int, metavar="N", help="nodes of one pack at most"),
    argument(
        "--min-fill",
        type=float,
        default=0.5,
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
    flag("--dry-run", "print every job script and the node-hours; no more"),
    RESULTS_DIR,
    CONFIG_DIR,
)
def submit(given: argparse.Namespace) -> int:
    """Run a study on a cluster without Snakemake: its experiments are packed on nodes.

    Each experiment has a GPU, and the packs are submitted. Called again, it finds what it
    submitted before.
    """
    from kvscope.plan import grid, manifest

    cluster.require_packages()
    from kvscope.cluster import submission

    study, overrides = grid.split_study(given.overrides)
    planned = manifest.plan_if_changed(study, given.config_dir, given.results, overrides)
    options = submission.Cluster(
        name=given.cluster,
        site=given.site,
        account=given.account,
        queues=tuple(given.queue),
        length_min=given.length,
        max_nodes=given.max_nodes,
        min_fill=given.min_fill,
        setup=tuple(given.setup),
        options=given.options,
    )
    if given.dry_run:
        print("\n".join(submission.preview(planned, given.results, options)))
        return EXIT_DONE
    ended = submission.submit(planned, given.results, options, print)
    if failed := [outcome.key for outcome in ended if not outcome.ok]:
        raise KvscopeError(f"{len(failed)} of {len(ended)} failed: {', '.join(failed)}")
    print(f"next: kvscope report {planned['study']} --results {given.results}")
    return EXIT_DONE
