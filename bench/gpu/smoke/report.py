"""Makes the results of what the steps have stored: `python -m smoke.report OUT`.

`report.txt` says first what failed; `report.json` has all numbers, and where they come from;
`runs.tar.xz` has the runs' records and all logs. Exits with 1 if something failed.
"""

import datetime
import json
import os
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from smoke.place import FAILED, NO_TIME, PASSED, REHEARSED, WORK, stored
from smoke.steps import LIMITS_S, default_steps

KEPT_BYTES = 14 << 20  # of the runs' files, before they are compressed
LARGEST_BYTES = 2 << 20
WITHOUT_KERNELS = "+python"  # the version of vLLM's Python files alone
CAVEAT = (
    "Layers other than attention ran in PyTorch, since vLLM's compiled kernels were not there: "
    "throughput and the times of passes are not vLLM's, and must not be published as such."
)
REHEARSAL = "This was a rehearsal without a GPU: counts and bytes are a GPU's, times mean nothing."


def main(out: Path) -> int:
    """Write the results; 1 if something failed."""
    result = results()
    (out / "report.json").write_text(json.dumps(result, indent=1, default=str) + "\n")
    text = "\n".join(lines(result)) + "\n"
    (out / "report.txt").write_text(text, encoding="utf-8")
    keep_runs(out / "runs.tar.xz")
    print(text, end="")
    return int(result["failed"])


def results() -> dict[str, Any]:
    """All that is known, machine-readable."""
    steps = stored("steps") or []
    asked = os.environ.get("SMOKE_STEPS", "").split() or default_steps()
    done = {step["step"] for step in steps}
    lost = [name for name in ("imports", *asked) if name not in done]
    for name in lost:
        steps.append({"step": name, "outcome": FAILED, "seconds": 0.0, "faults": ["did not end"]})
    result = {name: stored(name) for name in ("imports", *LIMITS_S)}
    return {
        "failed": any(step["outcome"] == FAILED for step in steps),
        "rehearsed": REHEARSED,
        "provenance": provenance(result["facts"] or {}),
        "steps": steps,
        **result,
    }


def provenance(facts: dict[str, Any]) -> dict[str, Any]:
    """Subject, machine, time and command of the measurement."""
    versions = facts.get("versions") or {}
    vllm = str(versions.get("vllm"))
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": os.environ.get("SMOKE_COMMAND", "bench/gpu/smoke.sh"),
        "kvscope_commit": os.environ.get("SMOKE_COMMIT") or None,
        "gpu": facts.get("gpu"),
        "versions": versions,
        "python": facts.get("python"),
        "layers": "PyTorch" if vllm.endswith(WITHOUT_KERNELS) or REHEARSED else "vLLM's kernels",
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The report for people: failures first."""
    steps = found["steps"]
    failed = [step for step in steps if step["outcome"] == FAILED]
    passed = sum(step["outcome"] == PASSED for step in steps)
    yield f"{len(failed)} of {len(steps)} steps FAILED" if failed else f"{passed} steps passed"
    for step in failed:
        yield f"FAILED {step['step']}:"
        yield from (f"  {fault}" for fault in step["faults"])
    for what in skipped(found):
        yield f"{NO_TIME}: {what}"
    yield ""
    if found["rehearsed"]:
        yield REHEARSAL
    elif found["provenance"]["layers"] == "PyTorch":
        yield CAVEAT
    yield from of_machine(found)
    yield ""
    yield "steps: " + ", ".join(f"{s['step']} {s['outcome']} {s['seconds']:.0f} s" for s in steps)
    for name, section in SECTIONS.items():
        if found[name]:
            yield ""
            yield from section(found[name])


def skipped(found: dict[str, Any]) -> Iterator[str]:
    """Steps and runs that had no time."""
    yield from (step["step"] for step in found["steps"] if step["outcome"] == NO_TIME)
    rows = [row for step in CAMPAIGNS for row in found[step] or ()]
    yield from (f"run '{row['run']}'" for row in rows if NO_TIME in row["outcome"])


def of_machine(found: dict[str, Any]) -> Iterator[str]:
    """A line about the machine."""
    source = found["provenance"]
    gpu = source["gpu"] or {}
    name, driver = (gpu.get(key, "unknown") for key in ("name", "driver_version"))
    link = [
        gpu.get(f"pcie.link.{key}.max") or gpu.get(f"pcie.link.{key}.current")
        for key in ("gen", "width")
    ]
    yield f"{name}, driver {driver}, PCIe {link[0]} × {link[1]}; {source['date']}"
    versions = ", ".join(f"{key} {value}" for key, value in source["versions"].items())
    yield f"{versions}; kvscope's commit {source['kvscope_commit']}"


def of_facts(facts: dict[str, Any]) -> Iterator[str]:
    """The timer."""
    timer = facts.get("timer") or {}
    step, uncertainty = timer.get("step_ns"), timer.get("calibration_uncertainty_ns")
    yield f"timer: steps of {step} ns, tied to the host's clock within {uncertainty} ns"


def of_copies(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The four copies."""
    yield "copies of the cache (GiB/s; microseconds to launch, a block of a layer)"
    for row in rows:
        ways = (
            f"{way} {row[way]['gib_per_s']:6.1f} GiB/s, "
            f"{row[way]['launch_us_per_block_and_layer']:6.2f} µs"
            for way in ("out", "in")
        )
        right = "right" if row["bytes_kept"] and row["bytes_back"] else "WRONG"
        yield f"  {row['memory']:10} {row['copies']:9} {'; '.join(ways)}; bytes {right}"


def of_offloading(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Submission of copies of vLLM's offloading."""
    yield "submitting a job of vLLM's offloading (microseconds of the host)"
    for row in rows:
        yield (
            f"  {row['blocks']:3} blocks of {row['layers']} layers: "
            f"store {row['submit_store_us']:7.1f}, load {row['submit_load_us']:7.1f}, "
            f"the operator alone {row['swap_blocks_batch_us']:7.1f}"
        )


def of_kernels(rows: list[dict[str, Any]]) -> Iterator[str]:
    """How many cases are right."""
    right = sum(not row["faults"] for row in rows)
    yield f"kernels: {right} of {len(rows)} cases are PyTorch's, with the events that are due"


def of_recording(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Lines about the cost of recording."""
    yield "recording (milliseconds; off, on, vLLM's Triton kernel)"
    for row in rows:
        name = f"  {row['requests']:3} × {row['tokens']:4} tokens, {row['queries']:4} queries:"
        if "error" in row:
            yield f"{name} {row['error']}"
            continue
        times = ", ".join(f"{key} {value:.3f}" for key, value in row["ms"].items())
        cost = f"× {row['recording_costs']:.2f}, {row['ns_per_event']:.2f} ns an event"
        yield f"{name} {times}; {cost}"


COLUMNS = (
    *("outcome", "start_engine_s", "repeat_s", "passes", "preemptions", "same_tokens"),
    *("out_gib_per_s", "in_gib_per_s", "kv_events", "host_memory", "time_source", "oracles"),
)


def of_runs(title: str) -> Callable[[Any], Iterator[str]]:
    """The runs of a step."""

    def section(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
        yield f"{title}: " + " | ".join(COLUMNS)
        for row in rows:
            yield f"  {row['run']}: " + " | ".join(cell(row.get(column)) for column in COLUMNS)

    return section


def of_study(found: dict[str, Any]) -> Iterator[str]:
    """How many experiments of the study are valid."""
    page = "with its page" if found["page"] else "without a page"
    valid = f"{found['valid']} of {found['experiments']} experiments valid"
    yield f"study {found['study']} by Snakemake, {page}: {valid}"


def of_server(found: dict[str, Any]) -> Iterator[str]:
    """Requests, tokens and passes of a recorded server."""
    counts = (f"{found[key]} {key.replace('_', ' ')}" for key in COUNTS)
    yield f"recorded server: {', '.join(counts)}"


def cell(value: Any) -> str:
    """A value of a table."""
    return "–" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


COUNTS = ("requests", "output_tokens", "passes", "preemptions")
CAMPAIGNS = {
    "engine": "runs of the engine",
    "offload": "runs of the offloading engine",
    "profiler": "runs under Nsight Systems",
}
SECTIONS: dict[str, Callable[[Any], Iterator[str]]] = {
    "facts": of_facts,
    "copies": of_copies,
    "offloading": of_offloading,
    "kernels": of_kernels,
    "recording": of_recording,
    "study": of_study,
    "server": of_server,
    **{step: of_runs(title) for step, title in CAMPAIGNS.items()},
}


def keep_runs(archive: Path) -> None:
    """The logs, and the records of the runs that are not large."""
    kept = ("results", "study/results", "recording")
    paths = [*WORK.glob("*.log"), *(path for d in kept for path in sorted((WORK / d).rglob("*")))]
    left = KEPT_BYTES
    with tarfile.open(archive, "w:xz") as out:
        for path in paths:
            size = path.stat().st_size
            if path.is_file() and not path.is_symlink() and size <= min(left, LARGEST_BYTES):
                left -= size
                out.add(path, path.relative_to(WORK))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
