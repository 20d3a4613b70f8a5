"""Counts, sizes and durations in words, and as people write them."""

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

_PREFIXES = "KMGTP"
SIZES: Mapping[str, int | Fraction] = (
    {"": 1, "B": 1}
    | {f"{prefix}B": 1000**power for power, prefix in enumerate(_PREFIXES, 1)}
    | {f"{prefix}iB": 1024**power for power, prefix in enumerate(_PREFIXES, 1)}
    | {prefix: 1024**power for power, prefix in enumerate(_PREFIXES, 1)}
    | {f"{prefix}i": 1024**power for power, prefix in enumerate(_PREFIXES, 1)}
)
"""Bytes of each unit of a size; 80G is 80 GiB, as `vllm serve` and the shell's tools have it."""

DURATIONS: Mapping[str, int | Fraction] = {
    **{"us": Fraction(1, 10**6), "µs": Fraction(1, 10**6), "ms": Fraction(1, 1000)},
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
}
"""Seconds of each unit of a duration."""

SIZE_HELP = "as 80G, 80GiB (both binary) or 80GB (decimal)"
DURATION_HELP = "or with a unit: ms, s, min, h or d"
MOST_BYTES, MOST_SECONDS = 2**63 - 1, 10**9
_NUMBER, _EXPONENT = r"(\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})", r"([eE][+-]?\d{1,2})?"
_QUANTITY = re.compile(rf"{_NUMBER}{_EXPONENT}\s*([a-zA-Zµ/]*)")
QUANTITY = rf"^\s*{_NUMBER}{_EXPONENT}\s*[a-zA-Zµ]*\s*$"
"""A number with or without a unit, as a pattern of JSON Schema."""
_FOLDED = {unit.lower(): factor for unit, factor in SIZES.items()}


def parse_size(text: str, unit: str = "B", least: int = 1) -> int:
    """Bytes, rounded down, of a size as '80G', '1.5 TiB', '2gb' or '1e9'.

    KB, MB, ... are powers of 1000; KiB, Ki, K, MiB, ... are powers of 1024; upper and lower case
    are the same. A number alone is in `unit`. ValueError, a sentence, for anything else and
    for less than `least` bytes.
    """
    expected = f"a size of at least {size_text(least)} and below 8 EiB, in {_named(unit)} or "
    return int(
        _parse(text, _FOLDED, unit, lambda n: least <= n <= MOST_BYTES, expected + SIZE_HELP)
    )


def parse_duration(text: str, unit: str = "s", or_0: bool = False) -> float:
    """Seconds, above 0 or `or_0`, of a duration as '90', '90 s', '1.5min' or '2h'.

    A number alone is in `unit`. ValueError, a sentence, for anything else.
    """
    least = "of 0 or more" if or_0 else "above 0"
    expected = f"a duration {least} and below 31 years, in {_named(unit)} {DURATION_HELP}"

    def allows(seconds: Fraction) -> bool:
        return 0 < seconds <= MOST_SECONDS or (or_0 and seconds == 0)

    return float(_parse(text, DURATIONS, unit, allows, expected))


def parse_count(text: str, least: int) -> int:
    """A whole number, as '12' or '1e3'. ValueError, a sentence, for anything else."""
    expected = f"a whole number of at least {least}"
    return int(_parse(text, {"": 1}, "", lambda n: n.denominator == 1 and n >= least, expected))


def parse_number(text: str, unit: str, below: float = math.inf) -> float:
    """A number above 0, with or without its unit. ValueError, a sentence, for anything else."""
    units = {unit.lower(): 1}
    return float(_parse(text, units, unit, lambda n: 0 < n < below, f"a number of {unit} above 0"))


def size_text(size: int) -> str:
    """Bytes exactly, in the largest binary unit that has a whole number of them: '3 MiB'."""
    power = max(p for p in range(len(_PREFIXES) + 1) if p == 0 or size % 1024**p == 0 < size)
    return f"{size // 1024**power} {f'{_PREFIXES[power - 1]}iB' if power else 'B'}"


def _parse(
    text: str,
    units: Mapping[str, int | Fraction],
    unit: str,
    allows: Callable[[Fraction], bool],
    expected: str,
) -> Fraction:
    """A quantity in the base of `units`; a number alone is in `unit`.

    ValueError, a sentence with the text and the expected form, if the text is not an allowed
    quantity.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match and text.isprintable() and match[1].isascii():
        factor = units.get((match[3] or unit).lower())
        if factor is not None:
            number = Fraction(f"{match[1]}{match[2] or ''}") * factor
            if allows(number):
                return number
    raise ValueError(f"{text[:60]!r} is not {expected}")


def _named(unit: str) -> str:
    """The name of a unit for a message: 'bytes' of B, 'seconds' of s."""
    return {"b": "bytes", "s": "seconds", "min": "minutes"}.get(unit.lower(), unit)


def plural(count: int, thing: str) -> str:
    """'1 pass', '2 passes', '3,000 experiments'."""
    if count == 1:
        return f"1 {thing}"
    return f"{count:,} {thing}{'es' if thing.endswith('s') else 's'}"


def join_words(names: list[str], last: str = "and") -> str:
    """'a', 'a and b', 'a, b and c'."""
    return f" {last} ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def short_duration(seconds: float) -> str:
    """Three digits and a unit: '41.2 µs', '1.5 ms', '2.500 s'."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:,.3f} s"


def rough_duration(seconds: float) -> str:
    """A whole number and a unit: '40 s', '4 min', '5 h', '3 days'."""
    for unit, length, most in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48)):
        if seconds < most * length:
            return f"{round(seconds / length)} {unit}"
    return f"{round(seconds / 86400):,} days"
