"""Needs of a run, and resources of this machine."""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import psutil
import pytest

from kvscope.base.errors import EXIT_BAD_INPUT, EXIT_DONE, BadInput
from kvscope.cli import main as cli
from kvscope.plan import resources
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.tables import runfile

CONFIG = Path(__file__).parents[2] / "config"
OF_CONFIG = ["--config-dir", str(CONFIG)]
MIB = 2**20


@cache
def experiment(*overrides: str) -> Experiment:
    (planned,) = expand(None, list(overrides), CONFIG).experiments
    return planned.experiment


def memory_mib(*overrides: str) -> int:
    return resources.resources(experiment(*overrides))["memory_mib"]


def test_a_bigger_cache_needs_more_host_memory_on_a_cpu_but_not_on_a_gpu() -> None:
    assert memory_mib("cache.gib=2") - memory_mib("cache.gib=1") == 1024
    assert memory_mib("device=cuda", "cache.gib=2") == memory_mib("device=cuda", "cache.gib=1")


def test_a_host_pool_needs_memory_on_both() -> None:
    for device in ("cpu", "cuda"):
        small, big = (
            memory_mib("overflow=swap", f"overflow.host_gib={gib}", f"device={device}")
            for gib in (1, 3)
        )
        assert big - small == 2048


def test_weights_are_there_twice_on_a_cpu() -> None:
    # Llama-3.1-8B: 8,030,261,248 weights of 2 bytes, less tiny-llama's 3,687,936 of 4 bytes.
    more = memory_mib("model=llama-3.1-8b") - memory_mib("model=tiny-llama")
    cache = 256 * 32 * (131_072 - 8_192)  # bytes a token: 2 x 32 x 8 x 128 x 2, 2 x 4 x 8 x 32 x 4
    assert more == pytest.approx((2 * 8_030_261_248 * 2 - 2 * 3_687_936 * 4 + cache) / MIB, abs=2)


@pytest.mark.packages
@pytest.mark.parametrize(
    ("few", "many"),
    [
        (["workload.output_tokens=100"], ["workload.output_tokens=800"]),
        (["workload=zipf"], ["workload=zipf", "workload.num_requests=100000"]),
        (["tracing=full"], ["tracing=full", "tracing.buffer_events=100000000"]),
        (["workload.num_requests=10"], ["workload.num_requests=100000"]),
    ],
)
def test_more_to_note_needs_more_memory(few: list[str], many: list[str]) -> None:
    assert memory_mib(*many) > memory_mib(*few)


def test_threads_and_gpus() -> None:
    result = resources.resources(experiment("device=cuda", "device.threads=7"))
    assert (result["threads"], result["gpus"]) == (7, 1)
    assert resources.resources(experiment())["gpus"] == 0


# Control groups as Linux shows them: lines of /proc/self/cgroup, and limits by their files.
GROUPS: list[tuple[str, dict[str, str], list[int]]] = [
    ("0::/job/step\n", {"job/memory.max": "2048", "job/step/memory.max": "max"}, [2048]),
    ("0::/job/step\n", {"job/memory.max": "2048", "job/step/memory.max": "1024"}, [1024, 2048]),
    ("0::/\n", {"memory.max": "4096"}, [4096]),
    ("0::/not/mounted/here\n", {"memory.max": "4096"}, [4096]),
    ("0::/\n", {}, []),
    (
        "8:pids:/a\n4:memory:/a/b\n0::/\n",
        {"memory/a/b/memory.limit_in_bytes": "77", "memory/memory.limit_in_bytes": "99"},
        [77, 99],
    ),
    ("4:cpu,cpuacct:/a:b\n", {"a:b/memory.max": "5"}, []),
]


@pytest.mark.parametrize(("lines", "files", "limits"), GROUPS)
def test_limits_of_control_groups(
    lines: str, files: dict[str, str], limits: list[int], tmp_path: Path
) -> None:
    (tmp_path / "cgroup").write_text(lines)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert list(resources.group_limits(tmp_path / "cgroup", tmp_path / "fs")) == limits


def test_a_machine_has_no_more_than_its_group_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < resources.machine_gib() <= psutil.virtual_memory().total / 2**30
    monkeypatch.setattr(resources, "group_limits", lambda: iter([2**30]))
    assert resources.machine_gib() == 1.0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[float], None]:
    """Set the memory of this machine, in GiB; the working directory is empty."""
    monkeypatch.chdir(tmp_path)
    return lambda gib: monkeypatch.setattr(
        resources, "group_limits", lambda: iter([int(gib * 2**30)])
    )


def test_experiments_too_large_for_the_machine_are_refused_and_others_are_not(
    machine: Callable[[float], None],
) -> None:
    result = experiment("cache.gib=4")
    machine(resources.minimum_gib(result) + 0.01)
    resources.check_memory(result)
    machine(resources.minimum_gib(result) - 0.01)
    with pytest.raises(BadInput, match=rf"^{result.id} needs 4\.8 GiB of memory and this machine"):
        resources.check_memory(result)


def test_a_run_without_the_memory_is_refused_before_anything_is_allocated(
    machine: Callable[[float], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["run", "cache.gib=3000", "profiler=none", *OF_CONFIG, "--out", str(tmp_path / "run")]
    assert cli.main(words) == EXIT_BAD_INPUT
    output = capsys.readouterr().err
    assert "needs 3,000.8 GiB of memory" in output
    assert output.count("\n") == 1
    facts = runfile.read_run(tmp_path / "run")
    assert facts["status"] == runfile.FAILED
    assert "needs 3,000.8 GiB" in facts["reason"]


def test_a_plan_for_another_machine_is_made_with_a_warning(
    machine: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    machine(8)
    words = ["plan", "cache.gib=3000,1", "seed=1,2,3,4", *OF_CONFIG, "--write", "results"]
    assert cli.main(words) == EXIT_DONE
    warning = capsys.readouterr().err.splitlines()[0]
    assert warning.startswith("kvscope: warning: this machine's memory of 8.0 GiB is too little ")
    assert "for 4 of the experiments" in warning
    assert warning.count("g3000x32") == 3
    assert warning.endswith("needs 3,000.8 GiB, and 1 more do")
    assert cli.main(["plan", *OF_CONFIG]) == EXIT_DONE
    assert capsys.readouterr().err == ""


@pytest.mark.thorough
def test_the_largest_workload_is_planned_without_building_it(tmp_path: Path) -> None:
    """In a process that may take 1 GiB: the requests would take more."""
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30));"
        "from kvscope.cli import main as cli; sys.exit(cli.main(sys.argv[1:]))"
    )
    many = ["workload.num_requests=1e6", "workload.prompt_tokens=900", "repeats=1000"]
    command = [sys.executable, "-c", program, "plan", *many, *OF_CONFIG]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == EXIT_DONE, done.stderr
    assert "days: " in done.stdout
