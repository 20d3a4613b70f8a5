"""Declaring a command of the command line: its arguments, their types, how it ends.

`argument`, `flag` and `path` make an argument. `arguments` has those of several commands,
`CONFIG_DIR` and `RESULTS_DIR`, the words `OVERRIDES_HELP`, types of values, `place`, `whole`,
`positive`, `size` and `duration`, and `plan_command`, which plans a study of a directory;
`STRETCH` and `stretch_of` choose a stretch of a recording.

Imported whenever `kvscope` starts, it brings the standard library alone.
"""

from kvscope.base.errors import EXIT_DONE, EXIT_FAILED
from kvscope.cli.commands import arguments
from kvscope.cli.commands.arguments import argument, flag, path
from kvscope.cli.commands.command import command

__all__ = ["EXIT_DONE", "EXIT_FAILED", "argument", "arguments", "command", "flag", "path"]
