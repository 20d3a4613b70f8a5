"""A run of a pack knows its node, its neighbours, and how long they were there."""

import json
import stat

import pytest

from kvscope.run.placement import gpu_clocks, neighbours, placement


@pytest.fixture
def pack(tmp_path):
    directory = tmp_path / "pack-1"
    directory.mkdir()

    def member(key, host, start_s, end_s=None, attempt=1, ended=1):
        run = {"host": host, "gpu": key[-1], "start_s": start_s, "attempt": attempt}
        (directory / f"{key}.run").write_text(json.dumps(run))
        if end_s is not None:
            rc = {"host": host, "end_s": end_s, "attempt": ended}
            (directory / f"{key}.rc").write_text(json.dumps(rc))

    return directory, member


def overlaps(directory, start_s=100, end_s=200):
    result = neighbours(directory, "m0", start_s, end_s)
    return {neighbour["member"]: neighbour["overlap_s"] for neighbour in result}


def test_neighbours_are_those_of_the_node_at_the_time(pack):
    directory, member = pack
    member("m0", "n1", 90)
    member("m1", "n1", 50, 150)  # left in the middle
    member("m2", "n1", 180)  # came late, and is still there
    member("m3", "n2", 90)  # on another node
    member("m4", "n1", 10, 99)  # was gone before
    member("m5", "n1", 120, 60, attempt=2, ended=1)  # ended in an earlier attempt, and runs again
    assert overlaps(directory) == {"m1": 50, "m2": 20, "m5": 80}


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_a_damaged_file_of_a_neighbour_does_not_cost_the_run(pack, content):
    directory, member = pack
    member("m0", "n1", 90)
    member("m1", "n1", 50)
    (directory / "m2.run").write_text(content)
    (directory / "m1.rc").write_text(content)
    assert overlaps(directory) == {"m1": 100}


def test_what_is_recorded(pack, monkeypatch):
    directory, member = pack
    member("m0", "n1", 90)
    names = {"DIRECTORY": str(directory), "MEMBER": "m0", "NODE": "n1", "EXCLUSIVE": "1"}
    for name, value in names.items():
        monkeypatch.setenv(f"PACK_{name}", value)
    assert placement(100, []) == {
        "pack": "pack-1",
        "member": "m0",
        "node": "n1",
        "exclusive": True,
        "neighbours": [],
    }
    monkeypatch.delenv("PACK_DIRECTORY")
    assert placement(100, []) == {}


def test_clocks_are_read_from_nvidia_smi(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "GPU-1, 1410, 1215, 34"\necho "GPU-2, 1155, 1215, 61"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert [gpu["uuid"] for gpu in gpu_clocks()] == ["GPU-1", "GPU-2"]
    assert gpu_clocks()[1]["clocks.sm"] == "1155"
    for instead in ("exit 9", "echo No devices were found", "echo NVIDIA-SMI has failed; exit 9"):
        program.write_text(f"#!/bin/sh\n{instead}\n")
        assert gpu_clocks() == []


def test_clocks_are_those_of_the_visible_gpus_before_and_after(tmp_path, monkeypatch):
    program, calls = tmp_path / "nvidia-smi", tmp_path / "calls"
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\necho "GPU-1, $(wc -l < {calls}), 9, 9"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.delenv("PACK_DIRECTORY", raising=False)
    gpus = placement(100, gpu_clocks())["gpus"]
    assert [[gpu["clocks.sm"] for gpu in gpus[when]] for when in ("before", "after")] == [
        ["1"],
        ["2"],
    ]
    assert all("--id=2,3" in line.split() for line in calls.read_text().splitlines())
