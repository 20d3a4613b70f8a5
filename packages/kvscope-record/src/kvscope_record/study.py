"""A recording becomes a study of one experiment, and the workload file that it reads.

The workload is of Mooncake's format: lengths, arrivals and, by ids of equal blocks, the prefixes
that prompts share. The experiment has the server's settings, and is modeled.
"""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from kvscope.api.collecting import foreign
from kvscope.api.composition import composition, resolve, schema
from kvscope.api.errors import BadInput
from kvscope.api.files import files, reading
from kvscope.api.models import Model, costs
from kvscope.api.servers import servers
from kvscope.api.settings import documents
from kvscope.api.tables import tables
from kvscope_record import replayed
from kvscope_record.arrivals import arrivals_of
from kvscope_record.counts import features_of
from kvscope_record.records import Arrival, Scheduled
from kvscope_record.replayed import Replayed
from kvscope_record.stretch import NEWEST
from kvscope_record.window import read_window

MILLISECONDS = 1000  # a second
SIZES = (
    *("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "intermediate_size", "vocab_size"),
)
"""Keys of a config.json that identify the model, if present."""
Row = dict[str, Any]


def write_study(
    directory: Path, path: Path, hardware: str, model: str | None, stretch: foreign.Stretch = NEWEST
) -> list[str]:
    """Write the study `path`, CONFIG/study/NAME.yaml, and beside it its workload, NAME.jsonl.

    Returns what of the recording the study does not have, a sentence each. `model` names the
    model's description; None looks for the one of the recorded sizes. BadInput if the recording
    cannot be used, a file is there already, or the study could not be found by its name.
    """
    workload = path.with_suffix(".jsonl")
    _require_place(path, workload)
    costs.cost_model().sha256(hardware)  # refuses a name without numbers
    with reading.refusing(directory, "a recording"):
        window = read_window(directory, stretch)
        facts, notes = window.facts, [*window.notes]  # tables have notes of their own
        replay = replayed.read(window)
        requests = _requests(replay)
        if not requests:
            raise BadInput(f"{directory}: no request has been recorded there yet")
        described = _model(facts["model"], path.parent.parent, model)
        notes += _left_out(replay, requests, directory)
        if differences := _differences(facts["model"], described):
            notes.append(f"model: {described.name} is not the server's, {', '.join(differences)}")
        settings = _settings(facts, described, hardware, workload.name)
    with files.atomic_path(workload) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in _rows(replay, requests))
    study = {
        "title": f"Recording {facts['recording']}",
        "description": (
            f"What a server of vLLM {facts['vllm']} was asked for, with its settings, on modeled "
            f"hardware. `kvscope replay` wrote this file and {workload.name}."
        ),
        "grids": [{"name": "recording", "set": settings}],
    }
    schema.write_for_editors(path.parent.parent)
    files.write_text(path, f"{schema.MODELINE}\n{documents.dump(study)}")
    return notes


def _require_place(path: Path, workload: Path) -> None:
    """BadInput unless a study can be written here, and be found by its name."""
    if path.parent.absolute().name != "study" or path.suffix != ".yaml":
        raise BadInput(
            f"--write is {path} but must be a study's file, as config/study/mine.yaml, where "
            "`kvscope plan study=mine` finds it"
        )
    files.check_name(path.stem, "--write")
    for file in (path, workload):
        if file.exists():
            raise BadInput(f"{file} is there already; remove it, or write another study")


def _requests(replay: Replayed) -> list[Row]:
    """The table `requests` of a recording, a row each, by their arrival."""
    frame = replayed.tables_of(replay)[0][tables.REQUESTS]
    rows: list[Any] = frame.sort_values("arrival_s", kind="stable").to_dict("records")
    return rows


def _rows(replay: Replayed, requests: list[Row]) -> Iterator[Row]:
    """The lines of the workload file. A block that is no whole one of a prompt has its own id."""
    block_size = replay.window.facts["hash_block_size"]
    fresh, ids = count(), dict[str, int]()
    passes = arrivals_of(replay)
    for request in requests:
        number = int(request["request_id"])
        hashes = replay.came[number].hashes
        blocks = -(-request["prompt_tokens"] // block_size)
        yield {
            "timestamp": round((request["arrival_s"] - requests[0]["arrival_s"]) * MILLISECONDS, 6),
            "input_length": request["prompt_tokens"],
            "output_length": max(1, request["output_tokens"]),
            "hash_ids": [
                *(ids[h] if h in ids else ids.setdefault(h, next(fresh)) for h in hashes),
                *(next(fresh) for _ in range(blocks - len(hashes))),
            ],
            "arrival_pass": passes.came[number],
            "abort_pass": passes.given_up.get(number),
        }


def _settings(facts: Row, model: Model, hardware: str, workload: str) -> Row:
    """Settings of the study."""
    budget = facts["max_num_batched_tokens"]
    chunked = {"batching": "chunked", "batching.chunk_tokens": budget}
    dtype = facts["model"]["dtype"]
    return {
        "workload": "mooncake",
        "workload.path": workload,
        "workload.trace_block_tokens": facts["hash_block_size"],
        "model": model.name,
        **({"model.dtype": dtype} if dtype != model.dtype else {}),
        "device": "modeled",
        "device.hardware": hardware,
        "device.kernels": "vllm",
        **(chunked if facts["chunked_prefill"] else {"batching": "mixed"}),
        "engine.max_model_len": facts["max_model_len"],
        "engine.max_num_batched_tokens": budget,
        "engine.max_num_seqs": facts["max_num_seqs"],
        "cache.block_size": facts["block_size"],
        "cache.blocks": facts["kv_blocks_total"],
        "cache.layout": "by_layer",
        "cache.admission": "vllm",
        "cache.watermark": facts["watermark"] or 0.0,
        "cache.prefix_caching": facts["prefix_caching"],
        **({"cache.dtype": "fp8"} if _one_byte(facts, model) else {}),
        "overflow": "recompute",
    }


def _one_byte(facts: Row, model: Model) -> bool:
    """True if the server's cache has one byte for each number of K and V, over all its GPUs."""
    group, *others = facts["kv_groups"]
    block_bytes = group["block_bytes"] * _gpus(facts)
    return not others and bool(block_bytes == group["block_tokens"] * model.token_elements)


def _gpus(facts: Row) -> int:
    """GPUs of a rank."""
    return int(facts["tensor_parallel"] * facts["pipeline_parallel"])


# ---------------------------------------------------------------------- the model


def _model(recorded: Row, config_dir: Path, name: str | None) -> Model:
    """The description of a name, or the first one of the recorded sizes."""
    composer = composition.Composer(config_dir)
    if name is not None:
        composer.check_option("model", name, "--model")
        return _described(composer, name)
    for name in composer.groups["model"]:
        described = _described(composer, name)
        if not _differences(recorded, described):
            return described
    sizes = ", ".join(f"{key} {recorded[key]}" for key in SIZES if key in recorded)
    raise BadInput(
        f"no model of {config_dir}/model is the recorded one ({sizes}); name the nearest with "
        f"--model, one of {', '.join(composer.groups['model'])}, or add a file of it there"
    )


def _described(composer: composition.Composer, name: str) -> Model:
    path = str(composer.path(f"model/{name}.yaml"))
    config = resolve(composer.compose((("model", name),)), lambda _: path)
    return Model.model_validate(config["model"])


def _differences(recorded: Row, model: Model) -> list[str]:
    """The sizes of a recorded model that a description has otherwise, in words."""
    config = model.hf_config()
    sizes = config.get("text_config", config)
    return [
        f"{key} {sizes[key]} instead of {recorded[key]}"
        for key in SIZES
        if key in recorded and key in sizes and recorded[key] != sizes[key]
    ]


# ---------------------------------------------------------------------- what is left out


def _left_out(replay: Replayed, requests: list[Row], directory: Path) -> Iterator[str]:
    """Sentences on what a study cannot take from a recording."""
    facts = replay.window.facts
    gpus = _gpus(facts)
    if facts["scheduler"] not in servers.SCHEDULERS:
        yield f"scheduler: {facts['scheduler']} is not in the study, which has vLLM's"
    if facts["policy"] != "fcfs":
        yield f"scheduling policy: {facts['policy']}; the study takes requests by their arrival"
    if facts["async_scheduling"]:
        yield "asynchronous scheduling: the passes of the study do not overlap"
    yield from (feature.left_out for feature in features_of(facts))
    if facts["connector"]:
        yield (
            f"KV connector: {facts['connector']} is not in the study; overflow=native is vLLM's "
            "own offloading"
        )
    if gpus > 1:
        yield f"ranks: the server's {gpus} GPUs are one in the study, with a cache as large"
    if directory.absolute().name.startswith("rank"):
        yield "ranks: this is one of the server's; the study has no other"
    if not facts["prefix_caching"]:
        yield "prefixes: without a prefix cache they are not recorded; no prompts share any"
    if begun := len(replay.window.live):
        yield f"requests: {begun} came before the recording's first pass; the study has them whole"
    if cut := sum(request["aborted"] for request in requests):
        yield (
            f"aborts: {cut} request(s) were aborted or had not ended; the study gives each, to its "
            "end, the tokens that it got, one at least, but with workload.arrival=passes"
        )
    if sessions := _sessions(replay):
        yield f"sessions: {sessions} request(s) got further input later; the study has the first"
    if tokens := _generated(replay):
        yield (
            f"prefixes: {tokens:,} tokens of prompts were found in blocks that earlier requests "
            "had generated, or that were computed before the recording's first pass; the study's "
            "prompts do not share them"
        )


def _sessions(replay: Replayed) -> int:
    """Requests that ended with more tokens in the cache than they came with and were given."""
    if features_of(replay.window.facts):
        return 0  # tokens that they count may be computed too
    reached: dict[int, int] = {}
    for event in replay.window.events:
        if isinstance(event, Scheduled):
            rows = zip(event.requests, event.computed, event.cached, strict=True)
            reached |= {request: computed + cached for request, computed, cached in rows}
    return sum(
        reached.get(number, 0) > replay.came[number].prompt_tokens + end.output_tokens
        for number, end in replay.ended.items()
        if number in replay.came
    )


def _generated(replay: Replayed) -> int:
    """Prefix hits of first admissions beyond all blocks of earlier prompts, in tokens."""
    block_size = replay.window.facts["hash_block_size"]
    seen = {h for live in replay.window.live for h in live.hashes}
    shared: dict[int, int] = {}  # tokens, of requests that no pass has had yet
    beyond_tokens = 0
    for event in replay.window.events:
        if isinstance(event, Arrival):
            shared[event.request] = block_size * sum(h in seen for h in event.hashes)
            seen.update(event.hashes)
        elif isinstance(event, Scheduled):
            hits = dict[int, int]((request, tokens) for request, tokens in event.hits)
            for request in event.requests:
                if request in shared:
                    beyond_tokens += max(0, hits.get(request, 0) - shared.pop(request))
    return beyond_tokens
