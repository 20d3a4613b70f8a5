"""The oracles of other packages: entry points in the group `kvscope.oracle`, each an Oracle."""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import wraps

from kvscope.base import plugins
from kvscope.base.errors import BadInput, KvscopeError
from kvscope.base.reading import describe_error
from kvscope.judge.oracles.run_tables import RunTables
from kvscope.tables.added import NoTable
from kvscope.tables.oracle import Oracle, Violations

GROUP = "kvscope.oracle"

RunOracle = Oracle[RunTables]


def package_oracles(own: Collection[str]) -> list[RunOracle]:
    """The oracles that installed packages register, in the order of their names.

    BadInput if one cannot be loaded, has another name than its entry point, or one of kvscope's
    `own`.
    """
    return [_loaded(name, own) for name in plugins.names(GROUP)]


def _loaded(name: str, own: Collection[str]) -> RunOracle:
    oracle: RunOracle = plugins.load(GROUP, name, Oracle)
    where = f"{GROUP} {name} ({plugins.origin(GROUP, name)})"
    if oracle.name != name:
        raise BadInput(f"{where} is a function named '{oracle.name}'; give both one name")
    if name in own:
        raise BadInput(f"{where} has the name of an oracle of kvscope; rename it")
    if not oracle.sentence:
        raise BadInput(f"{where} has no docstring, which says what must hold; write one")
    return replace(oracle, function=_guarded(oracle, where))


def _guarded(oracle: RunOracle, where: str) -> Callable[[RunTables], Violations | None]:
    """The oracle's function; whatever it raises or wrongly returns becomes a BadInput."""

    @wraps(oracle.function)
    def judged(run: RunTables) -> Violations | None:
        try:
            violations = oracle.function(run)
        except NoTable:  # of a package that was not installed when the run was made
            return None
        except KvscopeError:
            raise
        except Exception as error:
            raise BadInput(
                f"{where} raised {describe_error(error)}; fix or uninstall its package"
            ) from error
        if not isinstance(violations, Violations | None):
            raise BadInput(f"{where} returned {violations!r:.60}, expected Violations or None")
        return violations

    return judged
