"""Hardware data files: every number with its source, and in physical bounds."""

import pytest
import yaml

from kvscope.base.errors import BadInput
from kvscope_model.hardware import files, hardware


@pytest.mark.parametrize("name", files.names())
def test_every_number_has_a_source(name):
    result = hardware.read(name)
    assert set(result.sources) == set(type(result).model_fields) - {"title", "sources", "bootstrap"}
    assert all(result.sources.values())


@pytest.mark.parametrize("name", files.names())
def test_nothing_is_faster_than_the_vendor_states(name):
    result = hardware.read(name)
    assert result.gemm_flops_per_s < result.peak_flops_per_s
    assert result.attention_flops_per_s < result.peak_flops_per_s
    assert result.weight_bytes_per_s < result.memory_bytes_per_s * result.read_share
    for memory in ("pinned", "pageable"):
        for direction in ("out", "in"):
            assert getattr(result, f"{memory}_{direction}_bytes_per_s") < result.link_bytes_per_s


def test_the_hardware_of_the_configuration_is_there():
    assert set(files.names()) >= {"a100-40gb", "a100-80gb", "h100", "h200", "rtx-4090"}


def test_unknown_hardware_is_refused_with_the_names_there_are():
    with pytest.raises(BadInput, match="a100-40gb"):
        hardware.read("a100-40g")


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"value": 108}, "a value and a source"),
        ({"value": 108, "source": "nobody"}, "nobody"),
        ({"value": -1, "source": "datasheet"}, "greater than or equal to 1"),
    ],
)
def test_a_number_without_a_source_or_out_of_bounds_is_refused(tmp_path, entry, complaint):
    given = yaml.safe_load(hardware.data_file("h100").read_text(encoding="utf-8"))
    given["multiprocessors"] = entry
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(given), encoding="utf-8")
    with pytest.raises(BadInput, match=complaint):
        hardware.load(path)


def test_a_fit_to_a_bootstrap_sample_has_the_numbers_that_were_fitted():
    shipped = hardware.read("a100-40gb")
    fitted = {name for name, text in shipped.sources.items() if text.startswith("Fitted")}
    assert len(shipped.bootstrap) >= 12
    assert all(set(one) == fitted for one in shipped.bootstrap)


@pytest.mark.parametrize("name", ["a100-80gb", "h100", "h200", "rtx-4090"])
def test_what_was_not_measured_is_carried_over_or_scaled_by_what_vendors_state(name):
    known, result = hardware.read("a100-40gb"), hardware.read(name)

    def ratio(key: str) -> float:
        return getattr(result, key) / getattr(known, key)

    carried = [key for key, text in result.sources.items() if text.startswith("Carried")]
    assert "request_s" in carried
    assert [key for key in carried if ratio(key) != 1] == []
    peak = ratio("peak_flops_per_s")
    assert ratio("gemm_flops_per_s") == pytest.approx(peak, rel=1e-3)
    assert ratio("attention_flops_per_s") == pytest.approx(peak, rel=1e-3)
    assert ratio("weight_bytes_per_s") == pytest.approx(ratio("memory_bytes_per_s"), rel=1e-3)
    for key in ("prefix_token_s", "chunk_token_s"):
        assert ratio(key) == pytest.approx(ratio("multiprocessors") / peak, rel=1e-3)
