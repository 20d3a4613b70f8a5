"""Calibration recovers the constants from which times were generated."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvscope.base.statistics import bootstrap_interval
from kvscope.plan import documents, layers
from kvscope.plan.models import Model
from kvscope_model.calibration.calibrate import (
    Calibration,
    write_device,
)
from kvscope_model.calibration.fit import (
    Observation,
    Parameter,
    bootstrap,
    fit,
    intervals,
    leave_one_out,
)
from kvscope_model.device import Modeled
from kvscope_model.hardware import hardware as data
from kvscope_model.hardware.cost import PassCost
from kvscope_model.hardware.hardware import Hardware

CPU = data.read("cpu")
TRUE = CPU.model_copy(update={"gemm_flops_per_s": 7e10, "layer_launch_s": 2e-4})
PARAMETERS = (
    Parameter("gemm_flops_per_s", 3e10, 1e9, 1e13),
    Parameter("layer_launch_s", 5e-5, 1e-6, 1e-2),
)
MODEL = Model.model_validate(
    documents.load_mapping(layers.SHIPPED_CONFIG / "model" / "tiny-llama.yaml")
)
finite = st.floats(-1e12, 1e12)


def prefill_s(tokens: int, hardware: Hardware, values: dict) -> float:
    return PassCost(hardware, MODEL).pass_s([(tokens, 0)], 0, 0, 0)


def observation(group: str, tokens: int, factor: float = 1.0) -> Observation:
    predict = partial(prefill_s, tokens)
    return Observation(group, factor * predict(TRUE, {}), predict)


OBSERVED = [observation(f"run {n % 3}", 40 * 2 ** (n % 7)) for n in range(21)]


def test_numbers_that_made_the_times_are_found():
    result = fit(OBSERVED, PARAMETERS, CPU)
    assert result.values == pytest.approx(
        {"gemm_flops_per_s": 7e10, "layer_launch_s": 2e-4}, rel=0.01
    )
    assert result.hardware.gemm_flops_per_s == result.values["gemm_flops_per_s"]


def test_a_left_out_run_is_predicted_by_the_others():
    assert_predicted(leave_one_out(OBSERVED, PARAMETERS, CPU))


def assert_predicted(errors: Mapping[str, list[float] | None]) -> None:
    for group, found in errors.items():
        assert found == pytest.approx([0.0] * len(found or ()), abs=0.01), group


def test_an_observation_far_off_hardly_moves_the_fit():
    slip = observation("run 0", 320, factor=3.0)
    result = fit([*OBSERVED, slip], PARAMETERS, CPU)
    assert result.values["gemm_flops_per_s"] == pytest.approx(7e10, rel=0.05)


def test_the_bootstrap_is_the_same_each_time_and_holds_the_value():
    first, second = (bootstrap(OBSERVED, PARAMETERS, CPU, 4) for _ in range(2))
    assert first == second
    result = fit(OBSERVED, PARAMETERS, CPU).values
    for name, one in intervals(result, first).items():
        assert one.low <= result[name] == one.value <= one.high


@given(finite, st.lists(finite, min_size=2, max_size=20))
def test_an_interval_has_its_own_value_and_most_samples(value: float, samples: list[float]):
    result = bootstrap_interval(value, samples)
    assert result.low <= result.value == value <= result.high
    least, most = min(value, *samples), max(value, *samples)
    assert least <= result.low <= np.median(samples) <= result.high <= most


def test_constants_that_no_time_determines_stay_at_their_start():
    unknown = Parameter("pinned_copy_s", 2e-6, 1e-8, 1e-3)
    result = fit(OBSERVED, [*PARAMETERS, unknown], CPU)
    assert result.values["pinned_copy_s"] == pytest.approx(2e-6, rel=1e-6)
    assert result.values["gemm_flops_per_s"] == pytest.approx(7e10, rel=0.01)


def copy(hardware: Hardware, values: Mapping[str, float]) -> float:
    return hardware.pinned_copy_s


def test_a_group_of_which_the_others_do_not_tell_is_not_predicted():
    """A fit to the others has the start of what the group alone tells."""
    alone = Observation("copies:pinned", 3e-6, copy)
    known = Parameter("pinned_copy_s", 2e-6, 1e-8, 1e-3)
    errors = leave_one_out([*OBSERVED, alone], [*PARAMETERS, known], CPU)
    assert errors.pop("copies:pinned") is None
    assert_predicted(errors)


def test_a_written_device_has_the_fitted_numbers(tmp_path):
    result = fit(OBSERVED, PARAMETERS, CPU)
    samples = [result.values, {**result.values, "gemm_flops_per_s": 8e10}]
    calibration = Calibration(result, samples, {"run": [0.1]}, {})
    path = tmp_path / "here.yaml"
    write_device(calibration, path)
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    written.pop("sets")
    device = Modeled.model_validate(written)
    assert device.numbers.gemm_flops_per_s == pytest.approx(7e10, rel=0.01)
    assert [one.gemm_flops_per_s for one in device.fits] == pytest.approx([7e10, 8e10], rel=0.01)
    assert "gemm_flops_per_s" in "\n".join(calibration.lines())
