"""What the shipped studies give, frozen: a change of the code is judged by what it changes here.

    python bench/frozen.py compare [--results results]
    python bench/frozen.py write paper device=modeled --results results

`bench/frozen/` has a file for each shipped study: the ids of its experiments and, of complete
modeled ones, a digest of all tables of each experiment, its verdict, and a digest of each column
over all experiments. Modeled runs have no clock, so that all of it is the same on every machine.
`compare` plans each study again and, where its runs are in the results' directory, digests them
again; it names what differs, and exits with 1 if anything does. `write STUDY [OVERRIDES]` freezes
a study as it is now: only in a commit that names the line of CHANGELOG.md that says why.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

from kvscope.layout import experiment_directory, tables_directory
from kvscope.plan.grid import expand
from kvscope.quantities import plural

ROOT = Path(__file__).parents[1]
FROZEN = ROOT / "bench" / "frozen"
DIGEST_BYTES = 6
MOST_NAMED = 5  # experiments and columns in a line


@dataclass
class Frozen:
    """A study: of each experiment, by id, digest and verdict, or None; digests by column."""

    study: str
    overrides: list[str]
    experiments: dict[str, str | None] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """Its file, whose name has the overrides."""
        return FROZEN / f"{'-'.join([self.study, *self.overrides]).replace('=', '-')}.json"

    def write(self) -> None:
        """Write the file: an experiment a line, as a diff shows best."""
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text(json.dumps(asdict(self), indent=0) + "\n", encoding="utf-8")


def freeze(study: str, overrides: Sequence[str], results: Path) -> Frozen:
    """A study as it is now; runs that are not in `results`, or measured, have None."""
    planned = [
        one.experiment for one in expand(study, list(overrides), ROOT / "config").experiments
    ]
    found = Frozen(study, list(overrides))
    columns: dict[str, list[str]] = {}
    for experiment in planned:
        run = experiment_directory(results, experiment.id)
        known = not experiment.device.allocates and (run / "run.done").exists()
        found.experiments[experiment.id] = _digest_run(run, columns) if known else None
    if None not in found.experiments.values():
        found.columns = {name: _digest(sorted(each)) for name, each in sorted(columns.items())}
    return found


def _digest_run(run: Path, columns: dict[str, list[str]]) -> str:
    """The digest of a run's tables, and its verdict; each column's digest goes into `columns`."""
    every = []
    for directory in (run, tables_directory(run)):
        for path in sorted(directory.glob("*.parquet")):
            table = pq.read_table(path)
            for name in table.column_names:
                digest = _digest(table.column(name).to_pylist())
                columns.setdefault(f"{path.stem}.{name}", []).append(digest)
                every.append(f"{path.stem}.{name} {digest}")
    verdict = json.loads((tables_directory(run) / "analyse.json").read_text(encoding="utf-8"))
    words = "valid" if verdict["valid"] else ", ".join(sorted(verdict["reasons"]))
    return f"{_digest(every)} {words}"


def _digest(values: list[Any]) -> str:
    return blake2b(orjson.dumps(values), digest_size=DIGEST_BYTES).hexdigest()


def differences(frozen: Frozen, now: Frozen) -> Iterator[str]:
    """What differs of a study, a sentence each; what was not run now is not compared."""
    then_ids, now_ids = frozen.experiments, now.experiments
    if gone := [one for one in then_ids if one not in now_ids]:
        yield f"gone, {plural(len(gone), 'experiment')}: {_named(gone)}"
    if new := [one for one in now_ids if one not in then_ids]:
        yield f"new, {plural(len(new), 'experiment')}: {_named(new)}"
    changed = [
        one
        for one, digest in now_ids.items()
        if digest is not None and then_ids.get(one) not in (None, digest)
    ]
    if changed:
        yield f"other tables or verdicts, {plural(len(changed), 'experiment')}: {_named(changed)}"
    if frozen.columns and now.columns:
        names = sorted(frozen.columns.keys() | now.columns.keys())
        apart = [one for one in names if frozen.columns.get(one) != now.columns.get(one)]
        if apart:
            yield f"other values, {plural(len(apart), 'column')}: {_named(apart)}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def compare(results: Path) -> int:
    """Print what differs of each frozen study; 1 if anything does."""
    differs = False
    for path in sorted(FROZEN.glob("*.json")):
        frozen = Frozen(**json.loads(path.read_text(encoding="utf-8")))
        now = freeze(frozen.study, frozen.overrides, results)
        found = [*differences(frozen, now)]
        compared = sum(digest is not None for digest in now.experiments.values())
        print(f"{path.stem}: {len(now.experiments)} ids, {compared} runs compared", flush=True)
        for sentence in found:
            print(f"  {sentence}")
        differs |= bool(found)
    return int(differs)


def main() -> int:
    """Compare or write, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("compare", "write"))
    parser.add_argument("study", nargs="?", help="to write: its name")
    parser.add_argument("overrides", nargs="*", help="such as device=modeled")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    given = parser.parse_args()
    if given.what == "compare":
        return compare(given.results)
    if given.study is None:
        parser.error("write: name a study, such as `write paper device=modeled`")
    frozen = freeze(given.study, given.overrides, given.results)
    frozen.write()
    known = sum(digest is not None for digest in frozen.experiments.values())
    print(f"{frozen.file}: {len(frozen.experiments)} ids, {known} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
