"""Settings that change no record, because another setting takes their place.

Two values of such a key are two experiments with the same records. If the second is of no use,
`rules` refuses it. The others are listed here, and `kvscope plan` reports them if the command line
gives such a key, or if such keys are the only difference between two experiments.
`test_effects_modeled.py` of kvscope-model walks all keys and finds keys that neither refuses nor
reports.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvscope.base.quantities import plural
from kvscope.base.time_sources import MODELED
from kvscope.plan.devices.dry import Dry

if TYPE_CHECKING:
    from kvscope.plan.experiment import Experiment
    from kvscope.plan.grid import Plan


@dataclass(frozen=True)
class Idle:
    """A key that changes nothing where `where` holds, and why."""

    key: str
    why: str
    where: Callable[["Experiment"], bool]


def _modeled(experiment: "Experiment") -> bool:
    return experiment.device.time_source == MODELED


def _on_vllm(experiment: "Experiment") -> bool:
    """A device where vLLM's scheduler is all that works."""
    device = experiment.device
    return not device.allocates and "vllm" in device.attentions


def _cut(experiment: "Experiment") -> bool:
    """Passes end at the policy's own budget, and no window holds what a pass computes besides."""
    by_policy = experiment.batching.pass_tokens is not None and experiment.model.keeps_all
    return _on_vllm(experiment) and by_policy and not experiment.overflow.stages_passes


def _untraced(experiment: "Experiment") -> bool:
    return _on_vllm(experiment) and experiment.tracing.name == "none"


def _moves_nothing(experiment: "Experiment") -> bool:
    return _on_vllm(experiment) and not _dry(experiment) and experiment.overflow.name == "recompute"


def _dry(experiment: "Experiment") -> bool:
    return isinstance(experiment.device, Dry)


NOT_COMPUTED = "on a modeled device, which computes nothing of the model"
VIRTUAL = "on a modeled device, whose virtual clock begins each repeat anew, without noise"
OF_COPIES = tuple(
    f"{memory}_{what}"
    for memory in ("pinned", "pageable")
    for what in ("copy_s", "out_bytes_per_s", "in_bytes_per_s")
)
OF_PRICES = ("model.intermediate_size", "cache.layout", "overflow.host_memory", "overflow.copies")
IDLE = (
    *(
        Idle(key, "on device=dry, where every pass and every block take the same time", _dry)
        for key in OF_PRICES
    ),
    Idle("device.threads", NOT_COMPUTED, _on_vllm),
    Idle("tracing.buffer_events", "on a modeled device, which traces without a buffer", _on_vllm),
    Idle("model.rope_theta", NOT_COMPUTED, _on_vllm),
    Idle("model.rope_scaling", NOT_COMPUTED, _on_vllm),
    Idle("model.max_position_embeddings", NOT_COMPUTED, _on_vllm),
    Idle("warmup", VIRTUAL, _on_vllm),
    Idle("repeats.until", VIRTUAL, _modeled),
    Idle("repeats.budget_s", VIRTUAL, _modeled),
    Idle("exclusive", "on a modeled device, which other programs do not slow down", _modeled),
    Idle(
        "engine.attention", "on a modeled device with tracing=none: the cost is the same", _untraced
    ),
    Idle(
        "cache.layout",
        "with overflow=recompute on a modeled device, which copies nothing",
        _moves_nothing,
    ),
    *(
        Idle(
            f"device.constants.{name}",
            "with overflow=recompute on a modeled device, which copies nothing",
            _moves_nothing,
        )
        for name in OF_COPIES
    ),
    Idle(
        "engine.max_num_batched_tokens",
        "with batching=chunked on a modeled device, whose passes end at batching.chunk_tokens",
        _cut,
    ),
)


def notes(plan: "Plan") -> list[str]:
    """A sentence for each varied or given key that changes nothing.

    It is a key that the command line gives, or the only one that tells two experiments apart.
    """
    overridden = {word.partition("=")[0] for word in plan.overrides}
    experiments = [planned.experiment for planned in plan.experiments]
    # Of a section that varies, as `repeats`, any key may.
    varies = any(f"{idle.key}.".startswith(f"{key}.") for idle in IDLE for key in plan.varied_keys)
    alone = _all_that_differs(experiments) if varies else set()
    idle_by_key = ((idle, [e for e in experiments if idle.where(e)]) for idle in IDLE)
    return [
        _note(idle, len(same), len(experiments))
        for idle, same in idle_by_key
        if same and (idle.key in overridden or idle.key in alone)
    ]


def _all_that_differs(experiments: Iterable["Experiment"]) -> set[str]:
    """The idle keys that are the only difference between two of the experiments."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for experiment in experiments:
        settings = experiment.to_dict()
        values = {key: _taken(settings, key) for key in sorted(idle_keys(experiment))}
        groups[json.dumps(settings, sort_keys=True, default=str)].append(values)
    return {
        key
        for same in groups.values()
        for key in same[0]
        if any(values.get(key) != same[0][key] for values in same)
    }


def _taken(settings: dict[str, Any], key: str) -> Any:
    """The value of a dotted key, which is removed from the settings."""
    *sections, name = key.split(".")
    for section in sections:
        settings = settings.get(section) or {}
        if not isinstance(settings, dict):
            return None
    return settings.pop(name, None)


def idle_keys(experiment: "Experiment") -> set[str]:
    """The keys that change nothing in an experiment."""
    return {idle.key for idle in IDLE if idle.where(experiment)}


def _note(idle: Idle, same: int, count: int) -> str:
    of_all = "" if same == count else f" in {same} of {plural(count, 'experiment')},"
    return f"{idle.key} changes no result{of_all} {idle.why}"
