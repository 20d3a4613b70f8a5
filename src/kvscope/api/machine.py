"""The environment that kvscope is installed in, and processes that end with their parent.

`machine` has `processor`, what the system tells of it, and `installed_vllm`. `plugins` has the
`names` of entry points in a group, and `load`, which loads one. `processes` has `run`,
`running_whole` and `ENDING`, the signals that end one, of which `exit_on_signals` makes an exit.
"""

from kvscope import __version__
from kvscope.base import machine, plugins, processes
from kvscope.cli.packages import device

__all__ = ["__version__", "device", "machine", "plugins", "processes"]
