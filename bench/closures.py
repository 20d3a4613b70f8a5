"""Lines that must be read to change one thing: a module, and all that it imports.

    python bench/closures.py
    python bench/closures.py kvscope.engine.overflow.recompute

An import counts wherever it stands, in a function and under TYPE_CHECKING too; a line counts
whatever it holds. `bench/closures.yaml` has, for each extension point, a group of entry points or
a module, the lines that are allowed and those that are aimed at; of a group counts its module with
the largest closure. The command fails if a closure is larger than allowed, or so much smaller that
the line in the file is to be lowered. Of a given module it prints the closure: lines of each
module, and who in the closure imports it.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import grimp
import yaml

BUDGETS = Path(__file__).with_suffix(".yaml")
PACKAGE = "kvscope"
SLACK = 100  # the budget is lowered if a closure is smaller than it by so many lines
STEP = 50  # lines of which a budget is a multiple


@dataclass(frozen=True)
class Budget:
    """The lines allowed and aimed at for the closures of a module, or of a group's modules."""

    kind: str
    allowed: int
    target: int
    module: str = ""
    group: str = ""

    @property
    def modules(self) -> list[str]:
        """The module, or those of the package's own entry points in the group."""
        points = entry_points(group=self.group) if self.group else ()
        own = (p.module for p in points if p.dist is not None and p.dist.name == PACKAGE)
        return sorted({*own, *filter(None, [self.module])})

    def fault(self, module: str, lines: int) -> str:
        """Complaint about the largest closure, of so many lines; '' if it is within its budget."""
        if lines > self.allowed:
            return (
                f"{self.kind}: the closure of {module} has {lines:,} lines, {self.allowed:,} are "
                f"allowed; `python bench/closures.py {module}` says which import brings them"
            )
        lowered = max(-(-lines // STEP) * STEP, self.target)
        if lowered < self.allowed - SLACK:
            return (
                f"{self.kind}: the closure of {module} has {lines:,} lines, fewer than the "
                f"{self.allowed:,} that are allowed: write `allowed: {lowered}` in {BUDGETS.name}"
            )
        return ""


class Closures:
    """The closures of a package's modules over all of its own imports."""

    def __init__(self, package: str) -> None:
        self._graph = grimp.build_graph(package, cache_dir=None)
        spec = find_spec(package)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        self._above = Path(spec.submodule_search_locations[0]).parent
        self.lines = cache(self._lines)

    def of(self, module: str) -> set[str]:
        """The modules of a closure, itself included; KeyError if there is no such module."""
        if module not in self._graph.modules:
            raise KeyError(module)
        return {module, *self._graph.find_upstream_modules(module)}

    def size(self, module: str) -> int:
        """Lines of a closure."""
        return sum(map(self.lines, self.of(module)))

    def listing(self, module: str) -> Iterator[str]:
        """A line for each module of a closure, the longest first."""
        closure = self.of(module)
        for one in sorted(closure, key=lambda name: (-self.lines(name), name)):
            importers = self._graph.find_modules_that_directly_import(one) & closure
            yield f"{self.lines(one):6,}  {one:45}  {', '.join(sorted(importers))}".rstrip()

    def _lines(self, module: str) -> int:
        path = self._above.joinpath(*module.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        return len(file.read_text(encoding="utf-8").splitlines())


def read_budgets(path: Path) -> list[Budget]:
    """The budgets of a file, in its order."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [Budget(kind, **entry) for kind, entry in entries.items()]


def judge(budgets: Sequence[Budget], closures: Closures) -> tuple[list[str], list[str]]:
    """Lines of a table of closures and budgets, and complaints about them."""
    table = [f"{'':19} {'largest of':42} {'lines':>7} {'allowed':>8} {'target':>7}"]
    faults = []
    for budget in budgets:
        try:
            lines, module = max((closures.size(module), module) for module in budget.modules)
        except KeyError:
            faults.append(
                f"{budget.kind}: there is no module {budget.module}; name one of its kind"
            )
            continue
        counts = f"{lines:7,} {budget.allowed:8,} {budget.target:7,}"
        table.append(f"{budget.kind:19} {module:42} {counts}")
        faults += filter(None, [budget.fault(module, lines)])
    return table, faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or a closure; returns 1 if a budget is exceeded, or to be lowered."""
    parser = argparse.ArgumentParser(description="Lines that must be read to change one thing.")
    parser.add_argument("module", nargs="?", help="print the closure of this module")
    module = parser.parse_args(arguments).module
    closures = Closures(PACKAGE)
    if module is not None:
        try:
            print(*closures.listing(module), sep="\n")
        except KeyError:
            parser.error(f"there is no module {module} in {PACKAGE}")
        print(f"{closures.size(module):6,}  in {len(closures.of(module))} modules")
        return 0
    table, faults = judge(read_budgets(BUDGETS), closures)
    print(*table, sep="\n")
    print(*faults, sep="\n", end="\n" if faults else "", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
