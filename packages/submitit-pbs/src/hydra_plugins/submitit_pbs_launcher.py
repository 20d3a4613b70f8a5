"""`hydra/launcher=submitit_pbs`: a sweep of Hydra's as a PBS job array.

It needs hydra-submitit-launcher, which has launchers for Slurm and for this machine; without it
there is no launcher here. Hydra finds this module because it is in `hydra_plugins`.
"""

from dataclasses import dataclass, field
from typing import Any

try:
    from hydra.core.config_store import ConfigStore
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher
except ImportError:
    pass
else:

    class PBSLauncher(BaseSubmititLauncher):  # type: ignore[misc]
        """Submits each point of a sweep as a job of an array, and waits for all."""

        _EXECUTOR = "pbs"

    @dataclass
    class PBSQueueConf(BaseQueueConf):  # type: ignore[misc]
        """Parameters of `submitit_pbs.script.Parameters`, which explains them."""

        _target_: str = "hydra_plugins.submitit_pbs_launcher.PBSLauncher"
        queue: str | None = None
        account: str | None = None
        filesystems: str | None = None
        chunk: str | None = None
        select: str | None = None
        place: str | None = "scatter"
        resources: dict[str, Any] = field(default_factory=dict)
        rerunnable: bool = True
        umask: str | None = "022"
        array_parallelism: int = 0
        signal_delay_s: int = 90
        max_num_timeout: int = 0
        setup: list[str] = field(default_factory=list)
        teardown: list[str] = field(default_factory=list)
        directives: list[str] = field(default_factory=list)

    ConfigStore.instance().store(
        group="hydra/launcher", name="submitit_pbs", node=PBSQueueConf(), provider="submitit_pbs"
    )
