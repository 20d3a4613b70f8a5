"""Table of a document: features that ran on a real GPU, were rehearsed, or neither.

What has run on a GPU, and what came of it, is read from the results of bench/gpu/smoke.sh.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.api.documents import markdown

ROOT = Path(__file__).parents[4]
RESULTS = Path("bench/results/gpu")
NOT_YET, NO = "not yet", "–"
PASSED = "passed"
Report = dict[str, Any]


@dataclass(frozen=True)
class Topic:
    """Something that kvscope does on a GPU.

    Attributes
    ----------
    what
        in words
    answer
        what a report says of it; None if it does not say that it is right
    rehearsed
        the file of the test that rehearses it; empty if none does
    """

    what: str
    answer: Callable[[Report], str | None]
    rehearsed: str = ""


def reports(directory: Path) -> list[Report]:
    """The reports of real GPUs, the newest first."""
    all_reports = [json.loads(path.read_text("utf-8")) for path in directory.glob("*/report.json")]
    real = [
        report for report in all_reports if not report["rehearsed"] and report["provenance"]["gpu"]
    ]
    return sorted(real, key=lambda report: str(report["provenance"]["date"]), reverse=True)


def what_ran_where() -> str:
    """The table: of each topic the newest report that has an answer, and its rehearsal."""
    all_reports = reports(ROOT / RESULTS)
    rows = [(topic.what, on_gpu(topic, all_reports), rehearsal(topic)) for topic in TOPICS]
    header = ("what", "on a real GPU", "rehearsed by")
    return markdown(header, rows) + "\n" + "".join(sources(all_reports))


def on_gpu(topic: Topic, found: Iterable[Report]) -> str:
    """Answer of the newest report that has one, and its day."""
    for report in found:
        if answer := topic.answer(report):
            return f"{answer} ({day(report)})"
    return NOT_YET


def rehearsal(topic: Topic) -> str:
    """The test that rehearses a topic."""
    return f"`{topic.rehearsed}`" if topic.rehearsed else NO


def day(report: Report) -> str:
    """The GPU in a word or two, and the date."""
    name = str(report["provenance"]["gpu"]["name"]).removeprefix("NVIDIA ")
    return f"{name.partition(' ')[0]}, {str(report['provenance']['date'])[:10]}"


def sources(found: Iterable[Report]) -> Iterator[str]:
    """The machine and the versions of each report, as items of a list."""
    for report in found:
        source, gpu = report["provenance"], report["provenance"]["gpu"]
        versions = ", ".join(f"{n} {source['versions'][n]}" for n in ("torch", "triton", "vllm"))
        yield f"- {day(report)}: {gpu['name']}, driver {gpu['driver_version']}, {versions}; "
        yield f"kvscope's commit {source['kvscope_commit']}; layers other than attention in "
        yield f"{source['layers']}\n"


# ---------------------------------------------------------------------- answers of a report


def kernels(report: Report) -> str | None:
    """Number of batches that are right."""
    rows = report["kernels"] or []
    right = sum(not row["faults"] for row in rows)
    return f"{right} of {len(rows)} batches right" if rows else None


def recording(report: Report) -> str | None:
    """The factor by which recording lengthens a kernel's time, in words."""
    rows = [row for row in report["recording"] or () if "ms" in row]
    costs = [row["recording_costs"] for row in rows]
    return f"its time is × {min(costs):.2f} to {max(costs):.2f}" if costs else None


def beside_triton(report: Report) -> str | None:
    """The kernel's speed beside vLLM's Triton kernel."""
    rows = [row for row in report["recording"] or () if row.get("speed_beside_triton")]
    speeds = [row["speed_beside_triton"] for row in rows]
    return f"× {min(speeds):.2f} to {max(speeds):.2f}" if speeds else None


def timer(report: Report) -> str | None:
    """The timer's step."""
    timer_facts = (report["facts"] or {}).get("timer")
    return f"steps of {timer_facts['step_ns']:.0f} ns" if timer_facts else None


def copies(memory: str, way: str) -> Callable[[Report], str | None]:
    """The speeds of one kind of copies, if bytes are right."""

    def answer(report: Report) -> str | None:
        for row in report["copies"] or ():
            right = row["bytes_kept"] and row["bytes_back"]
            if right and (row["memory"], row["copies"]) == (memory, way):
                out, back = row["out"]["gib_per_s"], row["in"]["gib_per_s"]
                return f"bytes right; {out:.1f} GiB/s out, {back:.1f} in"
        return None

    return answer


def offloading(report: Report) -> str | None:
    """Microseconds to submit jobs."""
    rows = [row for row in report["offloading"] or () if row["bytes_back"]]
    times = (f"{r['submit_store_us']:.0f} µs for {r['blocks']} × {r['layers']}" for r in rows)
    return ", ".join(times) or None


def run(name: str, step: str = "engine") -> Callable[[Report], str | None]:
    """Outcome of a run of a step, if it has run."""

    def answer(report: Report) -> str | None:
        for row in report.get(step) or ():
            if row["run"] == name and row["outcome"].startswith((PASSED, "measured")):
                tokens = row.get("same_tokens")
                equal = f"tokens of the ample cache: {tokens}; " if tokens else ""
                checked = "oracles hold" if row["outcome"] == PASSED else "has run, not checked"
                return equal + checked
        return None

    return answer


def study(report: Report) -> str | None:
    """Number of valid experiments of a study with a page."""
    outcome = report.get("study")
    if not outcome or not outcome["page"]:
        return None
    return f"{outcome['valid']} of {outcome['experiments']} experiments valid"


def server(report: Report) -> str | None:
    """Number of a recorded server's requests that are in its tables."""
    outcome = report.get("server")
    return (
        f"{outcome['requests']} requests in {outcome['passes']} passes; oracles hold"
        if outcome
        else None
    )


def nowhere(report: Report) -> str | None:
    """No step of the smoke test asks."""
    return None


SMOKE = "packages/kvscope-rehearsal/tests/gpu/test_smoke.py"
POLICIES = "packages/kvscope-rehearsal/tests/engine/test_rehearsed_policies.py"
STUDY = "packages/kvscope-rehearsal/tests/workflow/test_rehearsed_study.py"
PACKS = "packages/kvscope-rehearsal/tests/workflow/test_rehearsed_packs.py"
SERVER = "packages/kvscope-rehearsal/tests/engine/test_rehearsed_server.py"
GROUPS = "packages/kvscope-rehearsal/tests/engine/test_rehearsed_groups.py"
TOPICS = (
    Topic("attention kernels: PyTorch's outputs, events by the contract", kernels, SMOKE),
    Topic("recording in the attention kernel", recording, SMOKE),
    Topic("speed of the kernel beside vLLM's Triton kernel", beside_triton),
    Topic("the timer that events are stamped by", timer, SMOKE),
    Topic("copies, page-locked, each block by itself", copies("pinned", "PerBlock"), SMOKE),
    Topic("copies, page-locked, coalesced", copies("pinned", "Coalesced"), SMOKE),
    Topic("copies, pageable, each block by itself", copies("pageable", "PerBlock"), SMOKE),
    Topic("copies, pageable, coalesced", copies("pageable", "Coalesced"), SMOKE),
    Topic("submitting a store of vLLM's offloading, blocks × layers", offloading, SMOKE),
    Topic("a run with an ample cache", run("ample"), SMOKE),
    Topic("a campaign with forks: recompute", run("recompute"), SMOKE),
    Topic("a campaign with forks: swap", run("swap"), SMOKE),
    Topic(
        "swap, coalesced, chunked, with KV events", run("swap, coalesced, chunked, recorded"), SMOKE
    ),
    Topic("vLLM's offloading (`overflow=native`)", run("native"), SMOKE),
    Topic("Llama-2-7B's sizes in bfloat16: swap", run("7B, swap")),
    Topic("Llama-2-7B's sizes in bfloat16: swap, coalesced", run("7B, swap, coalesced")),
    Topic("`overflow=activation`", run("activation"), POLICIES),
    Topic("`overflow=adaptive`", run("adaptive"), POLICIES),
    Topic("a model with several KV groups: swap", run("KV groups, swap"), GROUPS),
    Topic("a study by Snakemake, to its page", study, STUDY),
    Topic("Nsight Systems on a GPU", run("swap, profiled", "profiler")),
    Topic("a pack of four experiments on a node with four GPUs", nowhere, PACKS),
    Topic("Polaris; a Slurm cluster with GPUs", nowhere),
    Topic("a server recorded on a GPU (`kvscope record`)", server, SERVER),
    Topic("the offloading engine (`device=offload_cuda`)", run("hybrid", "offload")),
    Topic("the study `hybrid-cuda`", nowhere),
)
