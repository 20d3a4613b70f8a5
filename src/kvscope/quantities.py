"""Counts and durations in words."""


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
