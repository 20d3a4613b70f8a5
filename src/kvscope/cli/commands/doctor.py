"""Check this machine."""

import argparse
import sys

from kvscope.base.errors import EXIT_DONE
from kvscope.cli.commands.arguments import CONFIG_DIR, flag
from kvscope.cli.commands.command import command

NOISE_S = 60.0


@command(
    ("", "--noise"),
    flag("--noise", "measure what differences this machine can resolve, for a minute, with vLLM"),
    CONFIG_DIR,
)
def doctor(given: argparse.Namespace) -> int:
    """Check this machine for what kvscope needs, with advice on what is missing.

    With --noise, measure one experiment against itself: what it can resolve beside its other load.
    """
    if given.noise:
        return _measure_noise(given)
    from kvscope.cli import doctor

    return doctor.main()


def _measure_noise(given: argparse.Namespace) -> int:
    from kvscope.run import noise
    from kvscope.run.display import Line

    with Line(sys.stderr) as line:
        result = noise.measure_noise(given.config_dir, NOISE_S, line.show)
    print("\n".join(noise.describe(result)))
    return EXIT_DONE
