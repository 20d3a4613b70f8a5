"""Check this machine."""

import argparse

from kvscope.commands.command import command


@command(("",))
def doctor(given: argparse.Namespace) -> int:
    """Check this machine for what kvscope needs, with advice on what is missing."""
    from kvscope import doctor

    return doctor.main()
