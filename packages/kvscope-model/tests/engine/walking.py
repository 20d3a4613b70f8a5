"""Walks keys on the modeled device, all in one process, which imports vLLM's parts once."""

import tempfile
from pathlib import Path

from kvscope.base.errors import BadInput
from kvscope.base.files import sha256_of
from kvscope.base.layout import EXPERIMENT_FILE
from kvscope.plan import effects
from kvscope.plan.experiment import Experiment, dump
from kvscope.plan.grid import Plan, expand
from kvscope.run.locks import SUPERVISOR_LOCK, hold_lock
from kvscope.run.virtual import serve_all
from tests.unit.keys_walked import OF_HARDWARE, SMALL, Walk

CONFIG = Path(__file__).parents[4] / "config"
ON_MODELED = ("device=modeled", "device.kernels=vllm")
Records = dict[str, str]


def unsaid(walks: list[Walk], admission: str) -> list[str]:
    """The walks with a fault, in words: what changes nothing unsaid, or is wrongly said to."""
    result: dict[str, Records] = {}
    faults = ((walk, _fault(walk, admission, result)) for walk in walks)
    return [f"{walk}: {fault}" for walk, fault in faults if fault]


def _fault(walk: Walk, admission: str, found: dict[str, Records]) -> str:
    """Complaint; '' if a context tells the two apart, or each refuses or reports it."""
    unsaid_with = ""
    for context in walk.contexts:
        words = [f"cache.admission={admission}", *context.split()]
        first, second = _plan(words), [*words, f"{walk.key}={walk.second}"]
        try:
            other = _plan(second)
        except BadInput as error:
            if walk.key not in str(error):
                return str(error)
            continue
        one, two = (plan.experiments[0].experiment for plan in (first, other))
        if one.id == two.id:
            return "two values are one experiment"
        if _recorded(one, found) != _recorded(two, found):
            idle = walk.key in effects.idle_keys(one)
            return f"it is said to change nothing with {context}" if idle else ""
        if walk.key not in " ".join(effects.notes(other)):
            unsaid_with = context
    return f"it changes nothing, unsaid, with {unsaid_with}" if unsaid_with else ""


def _plan(words: list[str]) -> Plan:
    """The plan of the small workload with these words; of several of one key the last holds."""
    last = {word.partition("=")[0]: word for word in (*ON_MODELED, *SMALL, *words)}
    if last["device"] == "device=dry":
        last = {key: word for key, word in last.items() if key not in OF_HARDWARE}
    return expand(None, [*last.values()], CONFIG)


def _recorded(experiment: Experiment, found: dict[str, Records]) -> Records:
    if experiment.id not in found:
        found[experiment.id] = records_of(experiment)
    return found[experiment.id]


def records_of(experiment: Experiment) -> Records:
    """The SHA-256 of each file that a run records.

    Each repeat begins at 0 of the virtual clock, so equal runs have equal bytes.
    """
    with tempfile.TemporaryDirectory(prefix="kvscope-effects-") as name:
        directory = Path(name)
        (directory / EXPERIMENT_FILE).write_text(dump(experiment), encoding="utf-8")
        with hold_lock(directory, SUPERVISOR_LOCK):  # this process is its own supervisor
            assert serve_all(directory) is None
        files = [*directory.glob("*.parquet"), *directory.glob("kernel_events*")]
        return {path.name: sha256_of(path) for path in files}
