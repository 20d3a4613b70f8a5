"""A node: which GPUs a process sees, what nvidia-smi answers, what a rehearsal's directory has."""

import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from kvscope.base.errors import BadInput
from kvscope_rehearsal.command import prepare
from kvscope_rehearsal.node import (
    GIB,
    VISIBLE,
    Gpus,
    environment_of,
    gpus_of,
    hold,
    make_node,
    uuid_of,
    visible_gpus,
)

THREE = Gpus(count=3, memory_bytes=40 * GIB)


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("0,1,2", [0, 1, 2]),
        ("2,0", [2, 0]),
        (uuid_of(1), [1]),
        ("", []),
        ("-1", []),
        ("1,7,0", [1]),  # CUDA stops at an entry that is not a GPU
        ("1,1", [1]),
        ("all", []),
    ],
)
def test_a_process_sees_the_gpus_that_its_environment_names(value, seen):
    assert visible_gpus(THREE, {VISIBLE: value}) == seen


def test_without_the_variable_it_sees_all():
    assert visible_gpus(THREE, {}) == [0, 1, 2]


def test_a_node_keeps_the_kind_of_its_gpus(tmp_path: Path):
    make_node(tmp_path, THREE, "1.2.3")
    assert gpus_of(tmp_path) == THREE


def test_a_node_is_the_only_place_where_vllm_has_the_plugin(tmp_path: Path):
    make_node(tmp_path, THREE, "1.2.3")
    result = {d.metadata["Name"]: d for d in metadata.distributions(path=[str(tmp_path)])}
    assert result["vllm"].version == "1.2.3"
    (plugin,) = result["kvscope-rehearsal-node"].entry_points
    assert plugin.group == "vllm.platform_plugins"
    assert not metadata.entry_points(group="vllm.platform_plugins")


def test_the_node_comes_first_on_the_paths(tmp_path: Path):
    result = environment_of(tmp_path, {"PATH": "/bin", "PYTHONPATH": "/mine", "X": "1"})
    assert result["PATH"] == f"{tmp_path}/bin:/bin"
    assert result["PYTHONPATH"] == f"{tmp_path}:/mine"
    assert result["X"] == "1"


def test_one_process_at_a_time_has_a_gpu(tmp_path: Path):
    hold(tmp_path, 0)
    hold(tmp_path, 1)
    with pytest.raises(RuntimeError, match="another process has GPU 0"):
        hold(tmp_path, 0)


def smi(node: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = environment_of(node, {"PATH": "/usr/bin:/bin"} | variables)
    return subprocess.run(["nvidia-smi", *words], env=environment, capture_output=True, text=True)


def test_nvidia_smi_lists_all_whatever_is_visible(tmp_path: Path):
    make_node(tmp_path, THREE, "1.2.3")
    done = smi(tmp_path, "-L", CUDA_VISIBLE_DEVICES="1")
    assert len(done.stdout.splitlines()) == 3


def test_nvidia_smi_answers_queries_and_invents_no_clock(tmp_path: Path):
    make_node(tmp_path, THREE, "1.2.3")
    query = ("--query-gpu=uuid,clocks.sm,memory.total", "--format=csv,noheader,nounits")
    done = smi(tmp_path, *query, f"--id={uuid_of(2)},0")
    assert done.stdout.splitlines() == [f"{uuid_of(n)}, [N/A], 40960" for n in (2, 0)]
    assert smi(tmp_path, *query, "--id=9").returncode == 6


def test_a_rehearsal_has_links_to_all_but_the_results(tmp_path: Path):
    for name in ("config", "results", ".git"):
        (tmp_path / name).mkdir()
    rehearsal = tmp_path / "rehearsal"
    for _ in range(2):  # a second one finds its links
        prepare(rehearsal, tmp_path)
    assert [path.name for path in rehearsal.iterdir()] == ["config"]
    assert (rehearsal / "config").resolve() == tmp_path / "config"


def test_the_rehearsal_of_another_directory_is_refused(tmp_path: Path):
    for name in ("one", "other"):
        (tmp_path / name / "config").mkdir(parents=True)
    prepare(tmp_path / "rehearsal", tmp_path / "one")
    with pytest.raises(BadInput, match=r"is not a link to .*other/config"):
        prepare(tmp_path / "rehearsal", tmp_path / "other")


def test_a_directory_with_something_of_its_own_is_refused(tmp_path: Path):
    (tmp_path / "config").mkdir()
    (tmp_path / "rehearsal" / "config").mkdir(parents=True)
    with pytest.raises(BadInput, match="a rehearsal needs a directory of its own"):
        prepare(tmp_path / "rehearsal", tmp_path)
