"""Values that vLLM decides for `device=modeled` on a GPU: defaults, and blocks for states.

A model that keeps only tokens has blocks of the size that is asked for, on every GPU. Where layers
keep a state of each request, vLLM makes blocks large enough to hold one, whose bytes depend on the
GPU's backends: its planner is asked, once for each kind of experiment, and answers are kept.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from kvscope.api.devices import decisions
from kvscope.api.models import Model
from kvscope_model.capacity.gpus import Gpu
from kvscope_model.capacity.request import Answer, Question, ask_all

BLOCKS = 4096
"""Blocks of the cache in questions: the size of a block does not depend on them."""
PLENTY_BYTES = 2**50
TOKENS, REQUESTS = "max_num_batched_tokens", "max_num_seqs"
BLOCK_SIZE, LAYERS = "cache.block_size", "model.kv_layers"

RULES = {"cache.admission": "vllm", "cache.watermark": 0.0}
"""Rules of admission of vLLM today, where `device=modeled` has those of vLLM 0.4.2."""

Decision = decisions.Decision
Decisions = dict[str, Decision]


@dataclass(frozen=True)
class OnGpu:
    """A draft whose device is this hardware, the GPU of which vLLM plans for."""

    draft: decisions.Draft
    model: Model
    hardware: str
    gpu: Gpu

    @property
    def where(self) -> str:
        """The GPU, as the configuration names it."""
        return f"device.hardware={self.hardware}"

    @property
    def keeps_states(self) -> bool:
        """Whether the model keeps states, which blocks must hold."""
        return any(layers.state_bytes for layers in self.model.kept)

    @cached_property
    def limits(self) -> dict[str, int]:
        """The engine's limits: vLLM's defaults on the GPU, where study and command line set none.

        As `EngineArgs` of vLLM does: a pass has room for a whole prompt where prompts are not cut,
        and no more than the longest requests fill.
        """
        engine, given = self.draft.engine, self.draft.given
        tokens, requests = self.gpu.default_limits
        if f"engine.{REQUESTS}" in given:
            requests = engine.max_num_seqs
        if f"engine.{TOKENS}" in given:
            tokens = engine.max_num_batched_tokens
        else:
            tokens = max(engine.max_model_len, tokens) if self.draft.whole_prompts else tokens
            tokens = min(requests * engine.max_model_len, tokens)
        if f"engine.{REQUESTS}" not in given:
            requests = min(requests, tokens)
        return {TOKENS: tokens, REQUESTS: requests}

    @property
    def defaults(self) -> Decisions:
        """Decisions of the limits that are not set, and of rules that vLLM 0.4.2 had otherwise."""
        limits = {f"engine.{name}": value for name, value in self.limits.items()}
        origin = f"vLLM's default on {self.where}"
        return {
            key: Decision(value, origin)
            for key, value in (limits | RULES).items()
            if key not in self.draft.given
        }

    @property
    def question(self) -> Question:
        """The question of the size of blocks and states."""
        cache, model = self.draft.cache, self.model
        values = self.limits | {
            "dtype": model.dtype,
            "max_model_len": self.draft.engine.max_model_len,
            "block_size": cache.block_size,
            "kv_cache_dtype": cache.dtype,
            "num_gpu_blocks_override": BLOCKS,
        }
        flags = {
            "enable-prefix-caching": cache.prefix_caching,
            "enable-chunked-prefill": not self.draft.whole_prompts,
            "enforce-eager": True,
        }
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
        arguments += [f"--{'' if value else 'no-'}{name}" for name, value in flags.items()]
        return Question(
            model.name, model.hf_config(), arguments, [1], False, PLENTY_BYTES, self.gpu
        )

    def blocks(self, answer: Answer) -> Decisions:
        """Decisions of the size of blocks and of states, where it is not what was asked for."""
        model, asked = self.model, self.draft.cache.block_size
        decided: Decisions = {}
        kinds = {layers.of.vllm_name for layers in model.kept if layers.state_bytes}
        groups = answer.plan.groups
        states = {g.kind: g.useful_bytes // g.layers for g in groups if g.kind in kinds}
        origin = f"vLLM's plan for {self.where}"
        for size in {group.block_tokens for group in groups if group.kind not in kinds} - {asked}:
            note = (
                f"{BLOCK_SIZE}: asked {asked}, planned {size} for model={model.name} on "
                f"{self.where}, where vLLM makes blocks large enough for a state of "
                f"{max(states.values()):,} bytes a layer"
            )
            decided[BLOCK_SIZE] = Decision(size, origin, note)
        layers = [part.model_dump(exclude_defaults=True) for part in model.kept]
        planned = [
            entry | ({"state_bytes": states[part.of.vllm_name]} if part.state_bytes else {})
            for entry, part in zip(layers, model.kept, strict=True)
        ]
        if planned != layers:
            sizes = ", ".join(f"{part.state_bytes:,}" for part in model.kept if part.state_bytes)
            note = (
                f"{LAYERS}: asked for states of {sizes} bytes a layer, planned "
                f"{', '.join(f'{size:,}' for size in states.values())} for model={model.name} on "
                f"{self.where}, whose number types of states these are"
            )
            decided[LAYERS] = Decision(planned, origin, note)
        return decided


def decide(drafts: Sequence[OnGpu]) -> list[Decisions]:
    """The decisions for each draft; BadInput if vLLM cannot be asked, or refuses a model."""
    asked: dict[str, dict[str, Question]] = defaultdict(dict)  # by GPU, each question once
    keys = [_key(draft.question) if draft.keeps_states else None for draft in drafts]
    for draft, key in zip(drafts, keys, strict=True):
        if key:
            asked[draft.hardware][key] = draft.question
    answers: dict[str, Callable[[], Answer]] = {}
    for questions in asked.values():
        answers |= zip(questions, ask_all([*questions.values()]), strict=True)
    return [
        draft.defaults | (draft.blocks(answers[key]()) if key else {})
        for draft, key in zip(drafts, keys, strict=True)
    ]


def _key(question: Question) -> str:
    return json.dumps(question.as_json())
