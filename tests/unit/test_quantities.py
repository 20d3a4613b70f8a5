"""Sizes and durations as people write them."""

import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.base.errors import BadInput
from kvscope.base.quantities import DURATIONS, SIZES, parse_duration, parse_size, size_text
from kvscope.cli.commands.arguments import duration, size
from kvscope.cli.commands.command import CommandParser
from kvscope.plan.grid import expand

CONFIG = Path(__file__).parents[2] / "config"
UNITS = {
    **{"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15, "B": 1, "": 1},
    **{"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50},
    **{"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50},
    **{"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50},
}
NONSENSE = (
    *(
        "",
        " ",
        "-1",
        "-1GiB",
        "nan",
        "inf",
        "1e",
        "GiB",
        "1XB",
        "1 2",
        "0x10",
        "1_000",
        "1,5G",
    ),
    *("1e99", "9" * 40, "1e30TiB", "٣GiB", "1G\n", "80 G iB", "1e-9", "0", "+", "1e999999999"),
)


def test_the_table_of_units() -> None:
    assert UNITS == SIZES
    assert {unit: float(factor) for unit, factor in DURATIONS.items()} == {
        **{"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "sec": 1, "secs": 1, "second": 1},
        **{"seconds": 1, "m": 60, "min": 60, "mins": 60, "minute": 60, "minutes": 60, "h": 3600},
        **{"hr": 3600, "hrs": 3600, "hour": 3600, "hours": 3600},
        **{"d": 86400, "day": 86400, "days": 86400},
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *(("80G", 80 << 30), ("80 GiB", 80 << 30), ("80gib", 80 << 30), ("80GB", 80 * 10**9)),
        *(
            ("1.5TiB", 3 << 39),
            ("1TiB", 1 << 40),
            ("1e9", 10**9),
            (" 2gb ", 2 * 10**9),
            (".5K", 512),
        ),
    ],
)
def test_sizes(text: str, found: int) -> None:
    assert parse_size(text) == found


@given(st.integers(1, 2**63 - 1))
def test_a_size_in_words_is_that_size(size_: int) -> None:
    assert parse_size(size_text(size_)) == size_


@given(
    st.integers(1, 10**6), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]), st.booleans()
)
def test_a_number_and_a_unit_are_their_product(
    number: int, unit: str, gap: str, small: bool
) -> None:
    text = f"{number}{gap}{unit}"
    if number * UNITS[unit] < 2**63:
        assert parse_size(text.lower() if small else text) == number * UNITS[unit]
    if number * UNITS["GiB"] < 2**63:
        assert parse_size(str(number), "GiB") == number << 30


@given(
    st.decimals(1, 8000, places=3), st.decimals(1, 8000, places=3), st.sampled_from(sorted(UNITS))
)
def test_more_is_never_less(one: Decimal, other: Decimal, unit: str) -> None:
    sizes = [parse_size(f"{number}{unit}") for number in sorted((one, other))]
    assert sizes == sorted(sizes)


@given(st.decimals("0.001", 1000, places=3), st.sampled_from(sorted(DURATIONS)))
def test_a_duration_is_its_product(number: Decimal, unit: str) -> None:
    expected = float(Fraction(str(number)) * DURATIONS[unit])
    assert math.isclose(parse_duration(f"{number} {unit}"), expected)
    assert math.isclose(duration("min")(f"{number}{unit}") * 60, expected)


@pytest.mark.parametrize("text", NONSENSE)
def test_nonsense_is_refused_in_a_sentence(text: str) -> None:
    for parse, thing in ((parse_size, "size"), (parse_duration, "duration")):
        if parse is parse_duration and text in ("1e-9",):
            continue
        with pytest.raises(ValueError, match=f"is not a {thing}") as caught:
            parse(text)
        message = str(caught.value)
        assert message.startswith(repr(text[:60]))
        assert "\n" not in message


@given(st.text(max_size=20))
def test_any_text_is_a_size_or_refused(text: str) -> None:
    try:
        result = parse_size(text)
    except ValueError:
        return
    assert 1 <= result < 2**63


def test_a_size_of_eight_exbibytes_is_refused_as_too_much() -> None:
    assert parse_size(f"{2**63 - 1}") == 2**63 - 1
    for text in ("8192P", f"{2**63}"):
        with pytest.raises(ValueError, match="and below 8 EiB"):
            parse_size(text)


def test_an_option_says_what_it_expects(capsys: pytest.CaptureFixture[str]) -> None:
    parser = CommandParser(prog="x")
    parser.add_argument("--memory", type=size(least=1 << 20))
    assert parser.parse_args(["--memory", "80G"]).memory == 80 << 30
    with pytest.raises((SystemExit, BadInput)) as caught:
        parser.parse_args(["--memory", "80Q"])
    output = f"{caught.value} {capsys.readouterr().err}"
    assert "'80Q' is not a size of at least 1 MiB" in output


def ids(*overrides: str) -> set[str]:
    return {point.experiment.id for point in expand(None, [*overrides], CONFIG).experiments}


@pytest.mark.parametrize(
    ("text", "number"),
    [("0.5GiB", "0.5"), ("512 MiB", "0.5"), ("512M", "0.5"), ("1.073741824GB", "1"), ("1g", "1")],
)
def test_a_key_takes_a_unit_and_its_id_is_that_of_the_number(text: str, number: str) -> None:
    assert ids(f"cache.gib={text}") == ids(f"cache.gib={number}")
    plan = expand(None, [f"cache.gib={text},2"], CONFIG)
    assert [experiment.varied["cache.gib"] for experiment in plan.experiments] == [float(number), 2]


def test_a_time_to_think_takes_a_unit_and_may_be_0() -> None:
    ids_ = [ids("workload=conversation", f"workload.think_s={text}") for text in ("500ms", "0.5")]
    assert ids_[0] == ids_[1]
    assert ids("workload=conversation", "workload.think_s=0s")


def test_a_rate_is_no_duration() -> None:
    with pytest.raises(BadInput, match=r"workload\.rate_per_s is '5min' .* a number"):
        ids("workload.arrival=poisson", "workload.rate_per_s=5min")


def test_a_duration_of_a_key_takes_a_unit() -> None:
    assert ids("repeats={min:3,until:0.1,budget_s:2min}") == ids(
        "repeats={min:3,until:0.1,budget_s:120}"
    )


@pytest.mark.parametrize("text", ["80Q", "-1GiB", "nan", "inf", "1e30TiB", "two", "''"])
def test_a_key_refuses_a_value_that_is_not_a_size_in_a_sentence(text: str) -> None:
    with pytest.raises(BadInput, match=r"cache\.gib is ") as caught:
        expand(None, [f"cache.gib={text}"], CONFIG)
    assert "\n" not in str(caught.value)
