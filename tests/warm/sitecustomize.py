"""Python imports this when it starts: it makes some processes stand-ins (`tests.warm`)."""

import os
import sys

ZYGOTE = ["-m", "kvscope.run.zygote"]
COMMANDS = ("kvscope", "kvscope.cli", "snakemake")


def is_command(words: list[str]) -> bool:
    """Whether these words run kvscope or Snakemake, and such are to be stand-ins."""
    if "KVSCOPE_WARM_COMMANDS" not in os.environ or not words:
        return False
    return (words[1] if words[0] == "-m" else os.path.basename(words[0])) in COMMANDS


def stand_in(words: list[str]) -> None:
    """Go on as the stand-in for Python with these words, if the warm process fits."""
    import json
    from importlib.util import find_spec

    here = os.path.dirname(__file__)
    with open(os.path.join(here, "fits.json"), encoding="utf-8") as file:
        fits = json.load(file)
    result = find_spec("kvscope")
    if not result or os.path.realpath(result.origin or "") != fits["kvscope"]:
        return
    free = set(fits["free"])
    own, warm = (
        {name: value for name, value in environment.items() if name not in free}
        for environment in (os.environ, fits["environment"])
    )
    if words[:2] == ZYGOTE and own != warm:
        return
    first = os.getcwd() if words[0] == "-m" else os.path.dirname(words[0])
    request = {
        "words": words,
        "path": [first, *sys.path],
        "directory": os.getcwd(),
        "environment": dict(os.environ),
        "link": int(words[2]) if words[:2] == ZYGOTE else None,
    }
    # A program of its own, since a measured process is known by its command line.
    given = (fits["stand_in"], os.path.join(here, "socket"), json.dumps(request))
    os.execv(sys.executable, [sys.executable, "-I", "-S", *given])


if sys.orig_argv[1:3] == ZYGOTE or is_command(sys.orig_argv[1:]):
    stand_in(sys.orig_argv[1:])
