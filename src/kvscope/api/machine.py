"""The environment that kvscope is installed in, and processes that end with their parent.

`plugins` has the `names` of entry points in a group, and `load`, which loads one. `processes` has
`run`, `running_whole` and `ENDING`, the signals that end one.
"""

from kvscope import __version__, plugins, processes
from kvscope.machine import installed_vllm, processor
from kvscope.packages import device

__all__ = ["__version__", "device", "installed_vllm", "plugins", "processes", "processor"]
