"""The A100's numbers from the paper's Figures 3a, 3c, 4a and 8a."""

from collections.abc import Iterator
from functools import cache, partial
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from kvscope.api.files import files
from kvscope.api.models import Model, layers
from kvscope.api.settings import documents
from kvscope_model.calibration import calibrate, fit
from kvscope_model.hardware import cost as costs
from kvscope_model.hardware import hardware as data
from kvscope_paper.published.figures import Point, points
from kvscope_paper.published.fitted import HEADING, FittedFigure

HARDWARE = "a100-40gb"
FIGURES = ("3a", "3c", "4a", "8a")
YARN = "yarn-llama-2-7b"
FORWARD_PASSES = "forward_passes"  # a metric that is no time
KV_AND_LAYERS = 2  # pieces of a block and layer: K and V apart
# How many tokens Figure 8a evicts was not published: its experiment in the study evicts so many
# with blocks of 16 tokens, and 4,033 to 4,080 with others.
EVICTED_TOKENS = 4066
RESIDENT_TOKENS = 830  # of the other request when the evicted one resumes

# Bounds are what the hardware can do at most and what no kernel of use falls below.
PARAMETERS = (
    fit.Parameter("gemm_flops_per_s", 220e12, 150e12, 300e12),
    fit.Parameter("weight_bytes_per_s", 1.1e12, 0.7e12, 1.555e12),
    fit.Parameter("attention_flops_per_s", 150e12, 40e12, 280e12),
    fit.Parameter("prefix_token_s", 0.15e-6, 0.02e-6, 0.6e-6),
    fit.Parameter("chunk_token_s", 0.086e-6, 0.02e-6, 0.6e-6),
    fit.Parameter("request_s", 70e-6, 1e-6, 300e-6),
    fit.Parameter("vocabulary_entry_s", 0.2e-9, 0.01e-9, 3e-9),
    fit.Parameter("pinned_copy_s", 2.4e-6, 0.1e-6, 10e-6),
    fit.Parameter("pinned_out_bytes_per_s", 24.5e9, 12e9, 26.1e9),
    fit.Parameter("pageable_copy_s", 5e-6, 0.1e-6, 20e-6),
    fit.Parameter("pageable_out_bytes_per_s", 8.4e9, 4e9, 20e9),
    # How Figures 3a and 4a were timed, and what was not published of 3c.
    fit.Parameter("cold_share", 0.25, 0.01, 0.6),
    fit.Parameter("cold_most_s", 30e-3, 1e-3, 80e-3),
    fit.Parameter("tokenisation_s", 1e-6, 0.05e-6, 6e-6),
    fit.Parameter("call_s", 60e-6, 1e-6, 400e-6),
    fit.Parameter("decode_context_tokens", 40, 1, 90),
)


@cache
def model(name: str) -> Model:
    """A model of the shipped configuration."""
    path = layers.SHIPPED_CONFIG / "model" / f"{name}.yaml"
    return Model.model_validate(documents.load_mapping(path))


def observations() -> list[fit.Observation]:
    """The times behind the published values."""
    return [time for point in points(FIGURES) if (time := _observation(point))]


def _observation(point: Point) -> fit.Observation | None:
    if point.table.metric == FORWARD_PASSES:
        return None
    figure, settings = point.table.figure, point.settings
    if figure == "8a":
        return fit.Observation(figure, point.value, partial(_resume_s, dict(settings)))
    prompt = int(settings["workload.prompt_tokens"])
    requests = int(settings.get("workload.num_requests", 1))
    if figure == "3c":
        seconds = requests / point.value
        name = str(settings["model.name"])
        return fit.Observation(figure, seconds, partial(_decode_s, name, requests))
    total = requests * (prompt + 1)
    chunk = settings.get("batching.chunk_tokens")
    predict = partial(_prefill_s, str(settings["model.name"]), prompt, requests, chunk)
    return fit.Observation(figure, total / point.value, predict)


def _prefill_s(
    name: str, prompt: int, requests: int, chunk: Any, hardware: data.Hardware, values: fit.Values
) -> float:
    cost = costs.PassCost(hardware, model(name), prefix_kernel=chunk is not None)
    if chunk is None:
        seconds = cost.pass_s([(prompt, 0)] * requests, 0, 0, 0)
    else:
        seconds = sum(cost.pass_s([part], 0, 0, 0) for part in chunks(prompt, int(chunk)))
    cold_s = min(values["cold_share"] * seconds, values["cold_most_s"])
    tokens = requests * (prompt + 1)
    return seconds + cold_s + tokens * values["tokenisation_s"] + requests * values["call_s"]


def chunks(prompt: int, size: int) -> Iterator[tuple[int, int]]:
    """The chunks of one prompt: tokens, and those before."""
    return ((min(size, prompt - start), start) for start in range(0, prompt, size))


def _decode_s(name: str, requests: int, hardware: data.Hardware, values: fit.Values) -> float:
    context = values["decode_context_tokens"]
    cost = costs.PassCost(hardware, model(name))
    return cost.pass_s([], requests, requests * context, context)


def _resume_s(settings: dict[str, Any], hardware: data.Hardware, values: fit.Values) -> float:
    """The paper's resume overhead of one eviction, by its clock."""
    evicted, block_size = EVICTED_TOKENS, int(settings["cache.block_size"])
    cost = costs.PassCost(hardware, model(YARN))
    if settings["overflow.name"] == "recompute":
        return cost.pass_s([(evicted, 0)], 0, 0, 0)
    architecture = model(YARN)
    copies = ceil(evicted / block_size) * architecture.layers * KV_AND_LAYERS
    piece = architecture.kv_bytes_per_token * block_size / (architecture.layers * KV_AND_LAYERS)
    memory = str(settings["overflow.host_memory"])
    # One rate is fitted for both directions: the figure has their sum alone.
    _, issued_s = costs.copy_s(hardware, copies, piece, memory, "out")
    copied_s, _ = costs.copy_s(hardware, copies, piece, memory, "out")
    decode_s = cost.pass_s([], 2, evicted + RESIDENT_TOKENS, evicted)
    return issued_s + copied_s + decode_s


def errors_of(calibration: calibrate.Calibration) -> dict[str, FittedFigure]:
    """The errors of the published figures that were fitted."""
    return {figure: _errors_of(calibration, figure) for figure in calibration.errors}


def _errors_of(calibration: calibrate.Calibration, figure: str) -> FittedFigure:
    errors = calibration.errors[figure]
    left_out = calibration.left_out[figure]
    left_out_errors = calibration.left_out_errors[figure]
    return FittedFigure(
        times=len(errors),
        median_error=calibrate.rounded(median(map(abs, errors))),
        largest_error=calibrate.rounded(max(map(abs, errors))),
        left_out=None if left_out is None else calibrate.rounded(left_out),
        left_out_errors=left_out_errors and [calibrate.rounded(error) for error in left_out_errors],
    )


def write_errors(calibration: calibrate.Calibration, path: Path) -> None:
    """Write the errors of the published figures, as the package ships them."""
    figures = {figure: errors.model_dump() for figure, errors in errors_of(calibration).items()}
    files.write_text(path, HEADING + documents.dump(figures, inline=True))


TIMES = calibrate.PublishedTimes(HARDWARE, PARAMETERS, observations, write_errors)
