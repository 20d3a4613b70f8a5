"""The planner's view of a workload: lengths, arrival times, and their files."""

from abc import abstractmethod
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any, ClassVar, Final, Literal

from kvscope.base.setting_values import ALL_AT_ONCE
from kvscope.plan.fields import MAX_TOKENS, Label, Rate, Seconds, impossible
from kvscope.plan.option import Option
from kvscope.plan.parts import Conditions

BY_PASS: Final = "passes"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a request's prompt and of its output."""

    prompt: int
    output: int

    @property
    def total(self) -> int:
        """Prompt and output tokens together."""
        return self.prompt + self.output


def split_total(total: int, prompt_to_output_ratio: float) -> Lengths:
    """Split a total as ⌈total / (1 + ratio)⌉ output tokens and the rest, both at least one."""
    output = ceil(total / (1 + prompt_to_output_ratio))
    output = min(max(output, 1), total - 1)
    return Lengths(total - output, output)


class Workload(Option):
    """Base class of workloads: lengths of requests, arrival times, and a timeout.

    `files` maps each key that names a file to the key of the file's SHA-256 (plan.sources);
    `wanted` describes the first file. The sum of the keys `length_keys` bounds the tokens of a
    request; without such keys, only `lengths` has them. With `forces_outputs` the tokens that come
    out are the workload's. `has_times` and `has_passes`: requests may come at times of the file, or
    before passes that it names.
    """

    files: ClassVar[dict[str, str]] = {}
    wanted: ClassVar[str] = "a file"
    length_keys: ClassVar[tuple[str, ...]] = ()
    has_times: ClassVar[bool] = False
    has_passes: ClassVar[bool] = False
    forces_outputs: ClassVar[bool] = False

    arrival: Literal["all_at_once", "poisson", "trace", "passes"] = ALL_AT_ONCE
    rate_per_s: Annotated[Rate | None, Label("arrival rate (requests/s)", "{} requests/s")] = None
    timeout_s: Seconds | None = None

    in_id: ClassVar[tuple[str, ...]] = ("arrival",)

    @abstractmethod
    def lengths(self, seed: int) -> list[Lengths]:
        """The lengths of each request, in order; BadInput if a file cannot be used."""

    def times(self) -> list[float]:
        """Seconds from the first request to each, with arrival=trace; needs `has_times`."""
        raise TypeError(f"{type(self).__name__} has no arrival times")

    def expected(self) -> tuple[float, float, float]:
        """Expected prompt tokens, expected output tokens, and most output tokens of a request."""
        lengths = self.lengths(seed=0)
        prompt, output = sum(item.prompt for item in lengths), sum(item.output for item in lengths)
        return prompt / len(lengths), output / len(lengths), max(item.output for item in lengths)

    @property
    def count(self) -> int:
        """The number of requests."""
        return getattr(self, "num_requests", None) or len(self.lengths(seed=0))

    def starts(self, seed: int) -> int:
        """The number of requests that arrive by themselves; others follow a finished request."""
        return len(self.lengths(seed))

    def longest_at_once(self, seed: int) -> list[Lengths]:
        """The lengths of requests that can be served at once, at their longest.

        All of them, unless some follow others that have finished.
        """
        return self.lengths(seed)

    @property
    def comes_by_pass(self) -> bool:
        """Whether requests come before passes that a file names, and not at times."""
        return self.arrival == BY_PASS

    def pauses_s(self) -> float:
        """Seconds for which the requests of the longest chain wait for one another."""
        return 0.0

    def facts(self) -> dict[str, Any]:
        """The entry of run.json: the workload's name, and its files with their SHA-256."""
        named = [(key, digest) for key, digest in self.files.items() if getattr(self, key)]
        values = {key: getattr(self, key) for pair in named for key in pair}
        return {"workload": self.name} | values

    def check(self, experiment: Conditions) -> None:
        """Refuse arrivals without times or rate, and requests that the engine cannot take."""
        self._check_arrival()
        if self.length_keys:
            self._check_lengths(experiment.engine.max_model_len)

    def _check_arrival(self) -> None:
        if self.arrival == "trace" and not self.has_times:
            raise impossible(
                f"workload.arrival 'trace' needs workload=trace, since workload={self.name} has "
                "no arrival times (choose all_at_once or poisson)",
                "workload.arrival",
            )
        if self.comes_by_pass:
            self._check_by_pass()
        keys = ("workload.rate_per_s", "workload.arrival")
        if self.arrival == "poisson" and self.rate_per_s is None:
            raise impossible(
                "workload.rate_per_s must be set (requests a second) with workload.arrival=poisson",
                *keys,
            )
        if self.arrival != "poisson" and self.rate_per_s is not None:
            raise impossible(
                f"workload.rate_per_s ({self.rate_per_s}) has no meaning with workload.arrival="
                f"{self.arrival}, only with poisson",
                *keys,
            )

    def _check_by_pass(self) -> None:
        if not self.has_passes:
            raise impossible(
                f"workload.arrival {BY_PASS!r} needs workload=mooncake with a file that `kvscope "
                f"replay` wrote; workload={self.name} names no passes (choose all_at_once or "
                "poisson)",
                "workload.arrival",
            )
        if self.timeout_s is not None:
            raise impossible(
                f"workload.timeout_s ({self.timeout_s}) must be null with workload.arrival="
                f"{BY_PASS}: the file says before which passes requests are aborted",
                "workload.timeout_s",
                "workload.arrival",
            )

    def _check_lengths(self, most: int) -> None:
        longest = sum(getattr(self, key) for key in self.length_keys)
        keys = [f"workload.{key}" for key in self.length_keys]
        if longest > most:
            raise impossible(
                f"{' + '.join(keys)} ({longest}) must not exceed engine.max_model_len ({most})",
                *keys,
                "engine.max_model_len",
            )
        tokens = self.count * longest
        if tokens > MAX_TOKENS:
            raise impossible(
                f"workload.num_requests ({self.count:,}) of up to {longest:,} tokens are "
                f"{tokens:,} tokens but must be at most {MAX_TOKENS:,} together",
                "workload.num_requests",
            )
