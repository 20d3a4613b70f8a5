"""Results of studies and judges, frozen: a change of the code is judged by its effect on them.

    python bench/frozen.py run victims --results DIR
    python bench/frozen.py compare [victims] [--results DIR]
    python bench/frozen.py write paper device=modeled [--results DIR]
    python bench/frozen.py compare --judges [--every 10 | --oracle differs_from_replay]
    python bench/frozen.py write --judges [--more 500]

`bench/frozen/` has a file for each shipped study: the ids of its experiments and, of complete
runs, a digest of all tables of each experiment, its verdict, and a digest of each column over all
experiments; null where a study was not run. Modeled runs have no clock, so that all of it is the
same on every machine, but for the last digits of metrics, whose sums processors make in other
orders, and of times that were drawn: so many significant `digits` of such a number count, all
where that is null. Of measured runs it
is the first repeat, without what a clock touches; where a study was run with `repeats=1`, which
takes about half the time, it is that repeat.
`run` makes the runs of a modeled study, about as fast as `kvscope plan` says. `compare` plans each
study again and, where its runs are in the results' directory, digests them again; it names what
differs, and exits with 1 if anything does. `write STUDY [OVERRIDES]` freezes a study as it is now:
only in a commit that names the line of CHANGELOG.md that says why.

With `--judges` it is what the oracles of tables say of edited and forged records (`judged`):
small runs are made on the modeled device, in `.cache/judged`. `compare` lists apart what is noticed
no more, which fails, and what is noticed under other names. `--every 10` takes a tenth of the
random edits; `--oracle` says how many cases one oracle notices of those that each other one did.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvscope.base.errors import BadInput
from kvscope.base.layout import experiment_directory, tables_directory
from kvscope.base.quantities import plural
from kvscope.cli.batch import Job, run_all
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.run.display import Line

ROOT = Path(__file__).parents[1]
FROZEN = ROOT / "bench" / "frozen"
RUNS = ROOT / ".cache" / "judged"
DIGEST_BYTES = 6
DIGITS = 6
SUMS = ("metrics", "repeat_metrics")  # tables whose last digits depend on the processor
DRAWN = ("requests.arrival_s", "workload.arrival_s", "workload.think_s")  # columns, by exp and log
NOTHING = 1e-12  # smaller values count as 0, in any unit
FIRST = "repeats=1"  # of a measured run, all that is frozen
OF_ONE_RUN = "run_sha256"  # of run.json, which has times of the wall clock and the machine
# Columns of recordings, which are null in the runs of studies.
RECORDED = ("workload.block_ids", "workload.text_ids", "batch.group_hit_tokens")
COUNTED = (
    *("workload", "requests", "steps", "batch", "preemptions", "transfers", "kv_groups"),
    *("hits", "evictions", "layers", "metrics", "repeat_metrics"),
)
COUNTS = ["passes", "requests", "preemptions", "tokens", "blocks", "B"]
"""Tables and units of metrics that are equal in every measurement of a measured run."""
TIMES = ("_s", "_ns")
BY_CLOCK = ("stalled", "place", "campaign", "round", "waiting", "repeats_valid")
BY_REPEATS = ("experiment_id", "ci_low", "ci_high")  # how many were asked for
WEIGHTED = ["pass_requests_mean", "stalled_passes"]  # metrics in such units, by the clock as well
MOST_NAMED = 5  # experiments and columns in a line


@dataclass
class Frozen:
    """A study: of each experiment, by id, digest (or ?) and verdict, or None; digests by column.

    So many significant digits of a number count, all of them where `digits` is None.
    """

    study: str
    overrides: list[str]
    digits: int | None = None
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


def freeze(
    study: str, overrides: Sequence[str], results: Path, digits: int | None = DIGITS
) -> Frozen:
    """A study as it is now; runs that are not in `results` have None."""
    result = Frozen(study, list(overrides), digits)
    columns: dict[str, list[str]] = {}
    for experiment, first in zip(
        _planned(study, overrides), _planned(study, [*overrides, FIRST]), strict=True
    ):
        measured = experiment.device.allocates
        run = _run_of([experiment, first] if measured else [experiment], results)
        digests = _digests(run, measured, digits) if run else {}
        for name, digest in digests.items():
            columns.setdefault(name, []).append(digest)
        result.experiments[experiment.id] = _summary(run, digests) if run else None
    if None not in result.experiments.values():
        result.columns = {name: _digest(sorted(each)) for name, each in sorted(columns.items())}
    return result


def _planned(study: str, overrides: Sequence[str]) -> list[Experiment]:
    return [
        point.experiment for point in expand(study, list(overrides), ROOT / "config").experiments
    ]


def _run_of(experiments: Sequence[Experiment], results: Path) -> Path | None:
    """The run of the first experiment that has its tables; None if none has."""
    runs = [experiment_directory(results, experiment.id) for experiment in experiments]
    complete = (
        run
        for run in runs
        if (run / "run.done").exists() and (tables_directory(run) / "analyse.json").exists()
    )
    return next(complete, None)


def _digests(run: Path, measured: bool, digits: int | None = None) -> dict[str, str]:
    """The digest of each column of a run's tables; if it was measured, of those with counts."""
    result = {}
    for directory in {run, tables_directory(run)}:
        for path in directory.glob("*.parquet"):
            if measured and path.stem not in COUNTED:
                continue
            table = _counts(pq.read_table(path)) if measured else pq.read_table(path)
            for name in table.column_names:
                column, cells = f"{path.stem}.{name}", table.column(name)
                is_null = column in RECORDED and cells.null_count == len(cells)
                if name != OF_ONE_RUN and not is_null:
                    rounded = path.stem in SUMS or column in DRAWN
                    result[column] = _digest(_values(cells, digits if rounded else None))
    return result


def _values(column: pa.ChunkedArray, digits: int | None) -> list[Any]:
    """The values of a column, numbers that are not whole with so many significant digits."""
    values: list[Any] = column.to_pylist()
    if digits is None or not pa.types.is_floating(column.type):
        return values
    rounded = (None if value is None else float(f"{value:.{digits}g}") for value in values)
    return [0.0 if number is not None and abs(number) < NOTHING else number for number in rounded]


def _counts(table: pa.Table) -> pa.Table:
    """The rows of the first repeat, as noise decides how many follow, and columns without times."""
    if "repeat" in table.column_names:
        table = table.filter(pc.equal(table["repeat"], 0))
    if "metric" in table.column_names:
        timed = pc.is_in(table["metric"], pa.array(WEIGHTED))
        table = table.filter(pc.and_not(pc.is_in(table["unit"], pa.array(COUNTS)), timed))
    others = {*BY_CLOCK, *BY_REPEATS}
    kept = [
        column_name
        for column_name in table.column_names
        if not column_name.endswith(TIMES) and column_name not in others
    ]
    return table.select(kept)


def _summary(run: Path, digests: dict[str, str]) -> str:
    """The digest of all columns, and the run's verdict."""
    verdict = json.loads((tables_directory(run) / "analyse.json").read_text(encoding="utf-8"))
    names = sorted(reason["name"] for reason in verdict["reasons"])
    words = "valid" if verdict["valid"] else ", ".join(names)
    return f"{_digest([f'{name} {one}' for name, one in sorted(digests.items())])} {words}"


def _digest(values: list[Any]) -> str:
    return blake2b(orjson.dumps(values), digest_size=DIGEST_BYTES).hexdigest()


def differences(frozen: Frozen, now: Frozen) -> Iterator[str]:
    """Differences of a study, a sentence each; experiments that were not run now are not
    compared."""
    then_ids, now_ids = frozen.experiments, now.experiments
    if gone := [then_id for then_id in then_ids if then_id not in now_ids]:
        yield f"gone, {plural(len(gone), 'experiment')}: {_named(gone)}"
    if new := [now_id for now_id in now_ids if now_id not in then_ids]:
        yield f"new, {plural(len(new), 'experiment')}: {_named(new)}"
    changed = [
        one
        for one, digest in now_ids.items()
        if digest is not None and _changed(then_ids.get(one), digest)
    ]
    if changed:
        yield f"other tables or verdicts, {plural(len(changed), 'experiment')}: {_named(changed)}"
    if frozen.columns and now.columns:
        names = sorted(frozen.columns.keys() | now.columns.keys())
        apart = [name for name in names if frozen.columns.get(name) != now.columns.get(name)]
        if apart:
            yield f"other values, {plural(len(apart), 'column')}: {_named(apart)}"


def _changed(then: str | None, now: str) -> bool:
    """Whether digest or verdict differ; `?` is a digest that is not known."""
    if then is None or then == now:
        return False
    digest, _, verdict = then.partition(" ")
    return digest != "?" or verdict != now.partition(" ")[2]


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def run(study: str, overrides: Sequence[str], results: Path) -> int:
    """Run the modeled experiments of a study, one after another, with their tables."""
    planned = _planned(study, overrides)
    if any(point.device.allocates for point in planned):
        raise BadInput(
            f"{study}: measured experiments are run by snakemake: `--config study={study} "
            f'overrides="{" ".join([*overrides, FIRST])}"`'
        )
    jobs = [Job(point, experiment_directory(results, point.id), tables=True) for point in planned]
    with Line(sys.stderr) as line:
        return run_all(jobs, line)


def compare(study: str | None, overrides: Sequence[str], results: Path) -> int:
    """Print what differs of this frozen study, or of each; 1 if anything does."""
    differs = False
    for path in sorted(FROZEN.glob("*.json")):
        frozen = Frozen(**json.loads(path.read_text(encoding="utf-8")))
        if study not in (None, frozen.study) or list(overrides) not in ([], frozen.overrides):
            continue
        now = freeze(frozen.study, frozen.overrides, results, frozen.digits)
        result = [*differences(frozen, now)]
        compared = sum(digest is not None for digest in now.experiments.values())
        print(f"{path.stem}: {len(now.experiments)} ids, {compared} runs compared", flush=True)
        for sentence in result:
            print(f"  {sentence}")
        differs |= bool(result)
    return int(differs)


def main() -> int:
    """Run, compare or write, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "compare", "write"))
    parser.add_argument("study", nargs="?", help="its name; to compare, all without one")
    parser.add_argument("overrides", nargs="*", help="such as device=modeled")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--judges", action="store_true", help="of oracles in place of studies")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each Nth edit only")
    parser.add_argument("--oracle", metavar="NAME", help="this one alone, and in place of which")
    parser.add_argument("--more", type=int, metavar="N", help="N random edits more, new forgeries")
    arguments = parser.parse_args()
    if arguments.judges:
        return _judges(arguments)
    if arguments.what == "compare":
        return compare(arguments.study, arguments.overrides, arguments.results)
    if arguments.study is None:
        parser.error(
            f"{arguments.what}: name a study, such as `{arguments.what} paper device=modeled`"
        )
    if arguments.what == "run":
        return run(arguments.study, arguments.overrides, arguments.results)
    frozen = freeze(arguments.study, arguments.overrides, arguments.results)
    frozen.write()
    known = sum(digest is not None for digest in frozen.experiments.values())
    print(f"{frozen.file}: {len(frozen.experiments)} ids, {known} runs")
    return 0


def _judges(given: argparse.Namespace) -> int:
    """The command on judges, whose runs are made by the code as it is now."""
    import judged
    from judged_runs import experiment
    from measuring import in_measured_environment

    in_measured_environment(experiment("swap, mixed"))
    packages = ("kvscope-connectors", "kvscope-model")
    own = (ROOT, *(ROOT / "packages" / name / "tests" / "engine" for name in packages))
    sys.path[:0] = map(str, own)  # the project's tests
    shutil.rmtree(RUNS, ignore_errors=True)
    say = partial(print, flush=True)
    if given.what == "compare":
        return judged.compare(RUNS, given.every, given.oracle, say)
    judged.write(RUNS, given.more, say)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BadInput as error:
        sys.exit(f"error: {error}")
