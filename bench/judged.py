"""Verdicts of the judges on edited and forged records: the frozen ones and the present ones.

`bench/frozen/judges/` has a line for each random edit of one cell (`edits.jsonl`: run, table,
column, row, value, other value, names of the violated oracles) and for each forgery or faulty
recorder (`forgeries.jsonl`: its name, and those of the oracles). No names: it was not noticed.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from judged_cases import NOTHING, RECORDER, Edit, Forged, Judge, draw, forgeries, mutants
from judged_runs import make

from kvscope.base.errors import BadInput
from kvscope.base.quantities import plural
from kvscope.judge.oracles.registry import ROWS, all_oracles, judge_tables
from kvscope.judge.oracles.run_tables import RunTables
from kvscope.judge.records import Records
from kvscope.tables.verdict import VIOLATED

FROZEN = Path(__file__).parent / "frozen" / "judges"
EDITS, FORGERIES = "edits.jsonl", "forgeries.jsonl"
REFUSED, CRASH, GONE = "BadInput", "crash", "gone"
MOST_NAMED = 12  # cases in a list
SEED = 5  # of the random edits
SAID_CASES = 100  # so many are judged in a minute or two
Names = frozenset[str]
Say = Callable[[str], None]


# --- judges


def every_oracle(run: Records) -> set[str]:
    """The oracles of tables that the run violates; REFUSED if it cannot be judged."""
    return _names(
        lambda: {verdict.name for verdict in judge_tables(run) if verdict.state == VIOLATED}
    )


def one_oracle(name: str) -> Judge:
    """A judge of one oracle: its name if the run violates it, and the first word that it says."""
    known = {oracle.name: oracle for oracle in (*ROWS, *all_oracles())}
    if name not in known:
        raise BadInput(f"--oracle is '{name}', expected one of {', '.join(known)}")

    def judged(run: Records) -> set[str]:
        result = known[name].check(RunTables(run))
        return {name, *result.first.split()[:1]} if result else set()

    return lambda run: _names(lambda: judged(run))


def _names(judged: Callable[[], set[str]]) -> set[str]:
    try:
        return judged()
    except BadInput:
        return {REFUSED}
    except Exception as error:  # a judge that reports no violation here is at fault
        return {f"{CRASH}: {type(error).__name__}"}


# --- what they said, and what they say


@dataclass
class Judged:
    """The names of what each edit violates, and each forgery, by its name."""

    edits: list[tuple[Edit, Names]] = field(default_factory=list)
    forgeries: dict[str, Names] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path = FROZEN) -> "Judged":
        """The frozen cases; empty if there are no files."""
        edits = [(Edit(*edit), _split(names)) for *edit, names in _lines(directory / EDITS)]
        forged = {name: _split(names) for name, names in _lines(directory / FORGERIES)}
        return cls(edits, forged)

    def write(self, directory: Path = FROZEN) -> None:
        """Write both files, a case a line."""
        directory.mkdir(parents=True, exist_ok=True)
        edits = ([*astuple(edit), _joined(names)] for edit, names in self.edits)
        forged = ([name, _joined(names)] for name, names in self.forgeries.items())
        for file, rows in ((EDITS, edits), (FORGERIES, forged)):
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            (directory / file).write_text(text, encoding="utf-8")

    def every(self, nth: int) -> "Judged":
        """All forgeries, and each `nth` edit."""
        return Judged(self.edits[::nth], self.forgeries)

    def without_gone(self) -> "Judged":
        """Cases without those that can no longer be made."""
        edits = [(edit, names) for edit, names in self.edits if GONE not in names]
        return Judged(edits, {k: v for k, v in self.forgeries.items() if GONE not in v})

    @property
    def cases(self) -> dict[str, Names]:
        """All that could be made, by name."""
        made = self.without_gone()
        return {edit.name: names for edit, names in made.edits} | made.forgeries


def _lines(path: Path) -> Iterator[list[Any]]:
    if path.exists():
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def _split(names: str) -> Names:
    return frozenset(names.split(", ") if names else ())


def _joined(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def judge_all(then: Judged, results: Path, judge: Judge, say: Say) -> Judged:
    """Verdicts of a judge on the edits of `then`, and on all forgeries and faulty recorders."""
    runs = make(results)
    result = Judged(forgeries=dict(judged_forgeries(runs, results, judge, say)))
    for number, (edit, _) in enumerate(then.edits, 1):
        result.edits.append((edit, _said(edit, runs[edit.run], judge)))
        if number % SAID_CASES == 0:
            say(f"{number} edits judged")
    return result


def judged_forgeries(
    runs: Mapping[str, Records],
    results: Path,
    judge: Judge,
    say: Say,
    known: Collection[str] = (),
) -> Iterator[tuple[str, Names]]:
    """Each forgery and each faulty recorder that is not `known`, and what a judge says of it."""
    new = [forged for forged in forgeries(runs) if forged.name not in known]
    for number, forged in enumerate(new, 1):
        yield forged.name, _said(forged, runs[forged.run], judge)
        if number % SAID_CASES == 0:
            say(f"{number} forgeries judged")
    if not any(name.startswith(RECORDER) for name in known):
        yield from ((name, frozenset(names)) for name, names in mutants(results, judge))


def _said(case: Edit | Forged, run: Records, judge: Judge) -> Names:
    try:
        made = case.of(run)
    except Exception as error:
        print(f"{case.name}: cannot be made, {error!r}", file=sys.stderr)
        return frozenset({GONE})
    return frozenset(judge(made))


# --- what differs


@dataclass
class Changes:
    """Cases that are no longer noticed, noticed only now, or noticed under other names."""

    cases: int
    lost: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    unsound: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)
    gained: list[str] = field(default_factory=list)
    renamed: Counter[tuple[str, str]] = field(default_factory=Counter)  # names then and now

    @classmethod
    def of(cls, then: Mapping[str, Names], now: Mapping[str, Names]) -> "Changes":
        """The changes from `then` to `now`, of cases by name."""
        result = cls(len(then))
        for name, before in then.items():
            after = now.get(name)
            if after is None:
                result.gone.append(name)
            elif name.endswith(f": {NOTHING}"):
                result.unsound += [f"{name} ({_joined(after)})"] * bool(after)
            elif _crashed(after) and not _crashed(before):
                result.crashed.append(f"{name} ({_joined(after)})")
            elif noticed(before) and not noticed(after):
                result.lost.append(f"{name} ({_joined(before)})")
            elif noticed(after) and not noticed(before):
                result.gained.append(f"{name} ({_joined(after)})")
            else:
                result.renamed.update(_renamed(before, after))
        return result

    @property
    def fails(self) -> bool:
        """Whether something is worse than it was."""
        return bool(self.lost or self.gone or self.unsound or self.crashed)

    def lines(self) -> Iterator[str]:
        """The changes in words."""
        yield f"judges: {self.cases} cases compared"
        for words, cases in (
            ("noticed no more", self.lost),
            ("gone, or cannot be made", self.gone),
            ("sound, and violated", self.unsound),
            ("a judge failed", self.crashed),
            ("noticed only now", self.gained),
        ):
            if cases:
                yield f"  {words}, {plural(len(cases), 'case')}:"
                yield from (f"    {name}" for name in cases[:MOST_NAMED])
                yield from [f"    and {len(cases) - MOST_NAMED} more"] * (len(cases) > MOST_NAMED)
        if self.renamed:
            yield "  noticed under other names, cases: name then → names now"
        for (old, new), count in self.renamed.most_common():
            yield f"    {count:5}  {old} → {new}"


def noticed(names: Names) -> bool:
    """Whether an oracle was violated, or the run was refused in a sentence."""
    return bool(names) and not _crashed(names)


def _crashed(names: Names) -> bool:
    return any(name.startswith(CRASH) for name in names)


def _renamed(before: Names, after: Names) -> Iterator[tuple[str, str]]:
    """Each name that is said no more, with those that are said only now."""
    new = _joined(after - before) or "(others of them)"
    lost = before - after
    yield from ((old, new) for old in sorted(lost))
    if not lost and after - before:
        yield "(all of them)", f"and {new}"


def shares(then: Mapping[str, Names], now: Mapping[str, Names], oracle: str) -> Iterator[str]:
    """For each frozen oracle, how many of its cases `oracle` notices, and which it does not."""
    missed: dict[str, list[str]] = {}
    for name, before in then.items():
        for old in before:
            missed.setdefault(old, []).extend([] if oracle in now.get(name, ()) else [name])
    for old in sorted(missed):
        cases = sum(old in before for before in then.values())
        yield f"  {old}: {cases - len(missed[old])} of {cases}"
        yield from (f"    not {name}" for name in missed[old][:MOST_NAMED])


def places(edits: Iterable[tuple[Edit, Names]], oracle: str) -> str:
    """How many of the edits that `oracle` notices have their column as its first word."""
    noticing = [(edit, names) for edit, names in edits if oracle in names]
    named = sum(f"{edit.table}.{edit.column}" in names for edit, names in noticing)
    return f"  of {len(noticing)} edits noticed, {named} by the name of their column"


# --- commands


def write(results: Path, more: int | None, say: Say) -> None:
    """Freeze the present verdicts on all cases; or on `more` new edits, and on new forgeries."""
    then = Judged.read()
    if more is None:
        result = judge_all(then, results, every_oracle, say)
    else:
        result = with_more(then, more, results, say)
    result = result.without_gone()
    result.write()
    say(f"{FROZEN}: {len(result.edits)} edits, {len(result.forgeries)} forgeries")


def with_more(then: Judged, more: int, results: Path, say: Say) -> Judged:
    """`then` with the verdicts on so many new edits and on new forgeries; written as it grows."""
    runs, known = make(results), {edit.name for edit, _ in then.edits}
    result = Judged(then.edits[:], then.forgeries.copy())
    result.forgeries |= judged_forgeries(runs, results, every_oracle, say, then.forgeries)
    for edit in draw(runs, more, (SEED, len(known))):
        if edit.name not in known:
            known.add(edit.name)
            result.edits.append((edit, _said(edit, runs[edit.run], every_oracle)))
            if len(result.edits) % SAID_CASES == 0:
                result.without_gone().write()
                say(f"{len(result.edits)} edits judged")
    return result


def compare(results: Path, nth: int, oracle: str | None, say: Say) -> int:
    """Print the differences from the frozen verdicts; 1 if a case is no longer noticed."""
    then = Judged.read().every(nth)
    judge = every_oracle if oracle is None else one_oracle(oracle)
    now = judge_all(then, results, judge, say)
    if oracle is not None:
        for line in shares(then.cases, now.cases, oracle):
            say(line)
        say(places(now.edits, oracle))
        sound = Changes.of(then.cases, now.cases).unsound
        say(f"  sound runs that violate it: {', '.join(sound) or 'none'}")
        return int(bool(sound))
    changes = Changes.of(then.cases, now.cases)
    for line in changes.lines():
        say(line)
    return int(changes.fails)
