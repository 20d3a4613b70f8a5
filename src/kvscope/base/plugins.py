"""Entry points that installed packages register, by group and name.

A package registers an object in its pyproject.toml, as docs/EXTENDING.md shows:

    [project.entry-points."kvscope.command"]
    score = "my_package.score:score"

Only the standard library is imported here: the command line reads this before anything else.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from kvscope.base.errors import BadInput

T = TypeVar("T")


@cache
def names(group: str) -> tuple[str, ...]:
    """The names in an entry-point group, sorted; nothing is loaded."""
    return tuple(sorted({point.name for point in entry_points(group=group)}))


@cache
def find(group: str, name: str) -> EntryPoint:
    """The entry point of a name; BadInput unless exactly one package registers the name."""
    points = {point.value: point for point in entry_points(group=group, name=name)}
    if not points:
        names_ = ", ".join(names(group)) or "nothing"
        raise BadInput(f"no installed package registers {name!r:.60} as {group}; known: {names_}")
    if len(points) > 1:
        raise BadInput(
            f"{name!r:.60} is registered twice as {group}, {' and '.join(sorted(points))}; "
            "uninstall one of the packages"
        )
    return next(iter(points.values()))


def origin(group: str, name: str) -> str | None:
    """The origin of what another package registers, 'toys 0.1, toys:FIGURE'; None of kvscope's own.

    BadInput if `find` raises it.
    """
    return origin_of(find(group, name))


def origin_of(point: EntryPoint) -> str | None:
    """The origin of an entry point, as of `origin`."""
    if point.dist is None or point.dist.name == "kvscope":
        return None
    return f"{point.dist.name} {point.dist.version}, {point.value}"


def load(group: str, name: str, kind: type[T]) -> T:
    """Load what a package registers under a name.

    BadInput if `find` raises it, if it cannot be loaded, or if it is no instance of `kind`.
    """
    point = find(group, name)
    try:
        loaded = point.load()
    except (Exception, SystemExit) as error:  # whatever a module of another package raises
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise BadInput(
            f"{group} {name} cannot be loaded from {origin_of(point) or point.value} ({problem}); "
            "fix or uninstall its package"
        ) from error
    if not isinstance(loaded, kind):
        raise BadInput(
            f"{group} {name} is {point.value}, which must be a {kind.__module__}.{kind.__name__}"
        )
    return loaded
