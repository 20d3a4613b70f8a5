"""Names that packages of kvscope's repository bring, for errors that name the package to install.

`extensions.toml` lists them by package and kind: commands, studies, and options of a group. Only
the standard library is imported here.
"""

import tomllib
from functools import cache
from pathlib import Path

LISTED = Path(__file__).with_suffix(".toml")


@cache
def brought() -> dict[tuple[str, str], str]:
    """The package that brings each name, by kind and name: `("device", NAME)`."""
    packages = tomllib.loads(LISTED.read_text(encoding="utf-8"))
    return {
        (kind, name): package
        for package, kinds in packages.items()
        for kind, names in kinds.items()
        for name in names
    }


def absent(kind: str, name: object) -> str | None:
    """A clause for an unknown name that a package of this repository brings; None for other names.

    'the package NAME, which brings it, is not installed; install it'.
    """
    package = brought().get((kind, str(name)))
    return package and f"the package {package}, which brings it, is not installed; install it"
