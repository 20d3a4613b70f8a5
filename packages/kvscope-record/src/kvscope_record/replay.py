"""Make a study of a recording."""

import argparse
import sys

from kvscope.api.commands import EXIT_DONE, argument, arguments, command, path


@command(
    (
        "recording --write config/study/mine.yaml",
        "recording --write config/study/mine.yaml --hardware h100 --model llama-3.1-8b",
    ),
    path("recording", "a recording's directory"),
    path("--write", "the study's file, CONFIG/study/NAME.yaml", required=True, metavar="FILE"),
    argument("--hardware", default="a100-80gb", help="modeled hardware (default: a100-80gb)"),
    argument("--model", metavar="NAME", help="a model of config/model (default: the recorded one)"),
    *arguments.STRETCH,
    order=60,
)
def replay(given: argparse.Namespace) -> int:
    """Write a study of what a server was asked for: a recording's requests and settings.

    Lengths, arrivals and shared prefixes become a workload beside the study, the engine's limits
    and cache its settings. It is modeled: `kvscope plan study=NAME 'cache.blocks=N'` asks what had
    been otherwise.
    """
    from kvscope_record.study import write_study

    stretch = arguments.stretch_of(given)
    for note in write_study(given.recording, given.write, given.hardware, given.model, stretch):
        print(f"kvscope: {note}", file=sys.stderr)
    print(given.write)
    print("next:", arguments.plan_command(given.write.stem, given.write.parent.parent))
    return EXIT_DONE
