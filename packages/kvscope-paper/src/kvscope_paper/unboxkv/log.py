"""Reads a published log of vLLM 0.4.2: settings, requests, and each pass of its measured part.

The log holds a warm-up first; what counts begins with the line 'Start benchmarking...'. A pass has
several lines: its batch's tokens, how long vLLM's parts took on the host, the queues after it, and
how long the step took.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvscope.api.errors import BadInput
from kvscope.api.files import limits, reading

LONGEST_LINE = 1 << 20
# Of a pass: its counts, and its shares in percent and times in milliseconds.
MOST = {int: limits.COUNT[1], float: 1e9}
BEGIN = "Start benchmarking..."
_NUMBER = r"(-?\d+(?:\.\d+)?)"
_SETTING = re.compile(r"(\w+)=('[^']*'|[^,()]+)")
_REQUEST = re.compile(r"^User Requests: prompt_len=(\d+), output_len=(\d+)")
_BLOCKS = re.compile(r"# GPU blocks: (\d+), # CPU blocks: (\d+)")
_TOKENS = re.compile(r"before \w+ forward\(\) input_ids\.shape=torch\.Size\(\[(\d+)\]\)")
_HOST = re.compile(rf"ModelRunner execute_model \(ms\):.* fwd={_NUMBER} ")
_STATS = re.compile(
    rf"Running: (\d+) reqs, Swapped: (\d+) reqs, Pending: (\d+) reqs, GPU KV cache usage: "
    rf"{_NUMBER}%, CPU KV cache usage: {_NUMBER}%, Interval\(ms\): {_NUMBER}"
)
_STEP = re.compile(rf"LLMEngine step\(\) \(unit:ms\): time_cost {_NUMBER} resumed_reqs=(\d+)")
_PREEMPTED = "Scheduler preempt the "
_RECOMPUTED = re.compile(r"A RECOMPUTE sequence is resumed\. recomputed_tokens = (\d+)")
_OUTPUT = re.compile(r"^RequestOutput\(request_id=(\d+),.*metrics=RequestMetrics\((.*)\)\)$")
_METRIC = re.compile(rf"(\w+)={_NUMBER}")
_TOTAL = re.compile(rf"^(Total_num_tokens|End-to-End latency): {_NUMBER}")


@dataclass
class LoggedPass:
    """One pass of the measured part; None where the log has no such line."""

    tokens: int | None = None
    duration_ms: float | None = None
    interval_ms: float | None = None  # since the statistics before
    forward_ms: float | None = None  # the host's, kernels launched and not awaited
    running: int = 0  # after the pass, as all queues
    swapped: int = 0
    pending: int = 0
    kv_percent: float = 0.0
    host_percent: float = 0.0
    resumed: int = 0
    preempted: int = 0
    recomputed_tokens: int = 0

    @property
    def is_whole(self) -> bool:
        """True if all lines of the request are in the log."""
        return None not in (self.tokens, self.duration_ms, self.interval_ms)

    @property
    def is_possible(self) -> bool:
        """True if every number is possible for a pass."""
        return all(
            0 <= value <= MOST[type(value)] for value in vars(self).values() if value is not None
        )


@dataclass
class Log:
    """Contents of a log."""

    path: Path
    settings: dict[str, str] = field(default_factory=dict)
    lengths: list[tuple[int, int]] = field(default_factory=list)  # prompt and output tokens
    gpu_blocks: int = 0
    host_blocks: int = 0
    passes: list[LoggedPass] = field(default_factory=list)
    requests: dict[int, dict[str, float]] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)

    def setting(self, name: str, default: str = "") -> str:
        """A setting of the command line, without quotes."""
        return self.settings.get(name, default).strip("'")

    @property
    def token_budget(self) -> int:
        """Tokens of a pass at most."""
        return self._number("max_num_batched_tokens")

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._number("block_size")

    @property
    def most_requests(self) -> int:
        """Requests of a pass at most; vLLM's default if the log does not say."""
        return self._number("max_num_seqs", "256")

    def _number(self, name: str, default: str = "") -> int:
        """A setting that is a positive number."""
        text = self.setting(name, default)
        if not text.isdecimal() or not 0 < int(text) <= limits.COUNT[1]:
            raise BadInput(f"{self.path}: its setting {name} is {text!r:.40}, not a number above 0")
        return int(text)

    @property
    def tokens_due(self) -> int:
        """Tokens that all passes compute without preemptions: a last token is never computed."""
        return sum(prompt + output - 1 for prompt, output in self.lengths)

    @property
    def recomputed_tokens(self) -> int:
        """Tokens that resumed requests computed again.

        A chunked prefill repeats the line of a resumed request in every pass until its prompt is
        done: what the batches hold beyond what was due is what was computed again.
        """
        return sum(pass_.tokens or 0 for pass_ in self.passes) - self.tokens_due


def read_log(path: Path) -> Log:
    """Read a log; BadInput names the file if it is no such log, or its passes are incomplete."""
    log = Log(path)
    lines = iter(reading.text_lines(path, LONGEST_LINE))
    _read_preamble(log, lines)
    if not log.settings or not log.lengths:
        raise BadInput(f"{path}: is no log of the UnBoxKV-IO artifact, which begins with Namespace")
    _read_passes(log, lines)
    if not log.passes:
        raise BadInput(f"{path}: has no pass after {BEGIN!r}")
    for number, pass_ in enumerate(log.passes, 1):
        if not pass_.is_whole:
            raise BadInput(f"{path}: pass {number} lacks a line; the log is cut")
        if not pass_.is_possible:
            raise BadInput(
                f"{path}: pass {number} has a number that no pass can have; it is damaged"
            )
    _check_lengths(log)
    if log.recomputed_tokens < 0:
        raise BadInput(
            f"{path}: its passes computed {-log.recomputed_tokens:,} tokens fewer than its "
            "requests have; the log is cut"
        )
    return log


def _check_lengths(log: Log) -> None:
    """BadInput if a request, the cache or an instant is beyond what tables hold."""
    most = limits.COUNT[1]
    counts = [log.gpu_blocks, log.host_blocks, *(n for pair in log.lengths for n in pair)]
    instants = [value for metrics in log.requests.values() for value in metrics.values()]
    if max(counts) > most or any(abs(value) > MOST[float] * 1e3 for value in instants):
        raise BadInput(f"{log.path}: a request or its cache has a number beyond {most:,}")


def _read_preamble(log: Log, lines: Iterator[str]) -> None:
    for line in lines:
        if line.startswith("Namespace("):
            log.settings = dict(_SETTING.findall(line))
        elif match := _REQUEST.match(line):
            log.lengths.append((int(match[1]), int(match[2])))
        elif line.startswith("Selected required requests"):
            log.lengths.clear()  # all were listed before; those that are served follow
        elif match := _BLOCKS.search(line):
            log.gpu_blocks, log.host_blocks = int(match[1]), int(match[2])
        elif line.rstrip().endswith(BEGIN):
            return


def _read_passes(log: Log, lines: Iterable[str]) -> None:
    """Each pass ends with its 'LLMEngine step()' line."""
    current = LoggedPass()
    for line in lines:
        if match := _TOKENS.search(line):
            current.tokens = int(match[1])
        elif match := _HOST.search(line):
            current.forward_ms = float(match[1])
        elif match := _STATS.search(line):
            current.running, current.swapped, current.pending = map(int, match.groups()[:3])
            current.kv_percent, current.host_percent, current.interval_ms = map(
                float, match.groups()[3:]
            )
        elif _PREEMPTED in line:
            current.preempted += 1
        elif match := _RECOMPUTED.search(line):
            current.recomputed_tokens += int(match[1])
        elif match := _STEP.search(line):
            current.duration_ms, current.resumed = float(match[1]), int(match[2])
            log.passes.append(current)
            current = LoggedPass()
        elif match := _OUTPUT.match(line):
            metrics = {name: float(value) for name, value in _METRIC.findall(match[2])}
            log.requests[int(match[1])] = metrics
        elif match := _TOTAL.match(line):
            log.totals[match[1]] = float(match[2])
