"""Studies on clusters: experiments become members of packs, and packs jobs of a batch system.

What packs are, and how they are planned, submitted and watched, is in the package `submitit_packs`
(packages/snakemake-executor-plugin-submitit), which knows nothing of kvscope. Here is what it is
given: the experiments of a study, and how each is run.
"""

from importlib.util import find_spec
from pathlib import Path

from kvscope.api.errors import BadInput


def require_packages() -> None:
    """BadInput if the packages that submit to clusters are not installed."""
    if find_spec("submitit_packs") is None:
        raise BadInput(
            "clusters need the packages in packages/ of kvscope's repository: `make env`, or pip "
            "install packages/snakemake-executor-plugin-submitit packages/submitit-pbs"
        )


def packs_directory(results: Path) -> Path:
    """Directory of the submitted packs."""
    return results / "packs"
