"""A finished study's directory as a research object: ro-crate-metadata.json.

It follows the profile Provenance Run Crate (https://w3id.org/ro/wfrun/provenance): the workflow,
its steps, each experiment as an action with its settings and times, and the files of the directory
with their hashes. All times are of the wall clock, in UTC; nothing is said in a modeled run's
virtual seconds.
"""

import mimetypes
import shutil
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml
from rocrate.model.contextentity import ContextEntity
from rocrate.model.entity import Entity
from rocrate.rocrate import ROCrate

from kvscope.base.errors import BadInput
from kvscope.base.files import make_directory, sha256_of, write_json
from kvscope.base.layout import CRATE_FILE, STUDIES, experiment_directory
from kvscope.base.time_sources import NOT_MEASURED, REHEARSED, mark_of
from kvscope.plan import manifest
from kvscope.plan.layers import SHIPPED
from kvscope.tables import METRICS
from kvscope.tables.results import Run
from kvscope.tables.runfile import RUN_FILE

WORKFLOW = ("Snakefile", "workflow/rules/run.smk", "workflow/rules/report.smk")
PROFILES = (
    "https://w3id.org/ro/wfrun/process/0.5",
    "https://w3id.org/ro/wfrun/workflow/0.5",
    "https://w3id.org/ro/wfrun/provenance/0.5",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0",
)
LEFT_OUT = (".done", ".log")  # of the workflow, not of the study
COMPLETED = "http://schema.org/CompletedActionStatus"
# The workflow's steps: rule, command, and what it does.
STEPS = {
    "run_experiments": ("kvscope run", "measures, collects and analyses experiments"),
    "report_study": ("kvscope report", "writes tables, figures and page"),
}
SHA256 = {"sha256": "http://schema.org/sha256"}  # RO-Crate's own context has it since 1.3 only
NANOSECONDS = 1e9  # of a second


def write_crate(study: str, results: Path) -> Path:
    """Describe a finished study's directory in its `ro-crate-metadata.json`; returns its path.

    BadInput if an experiment of it is not complete, or it has no tables. The workflow's files are
    copied beside it.
    """
    now_ns = time.time_ns()
    planned = manifest.read(study, results)
    home = results / STUDIES / study
    runs = {e["id"]: Run(experiment_directory(results, e["id"])) for e in planned["experiments"]}
    if missing := [id_ for id_, run in runs.items() if not run.record.complete]:
        raise BadInput(f"{missing[0]} of study {study} is not complete: run the study again")
    if not (home / METRICS.file).exists():
        raise BadInput(
            f"study {study} has no {METRICS.file}: write it with `kvscope report {study}`"
        )
    for name in WORKFLOW:
        make_directory((home / name).parent)
        shutil.copyfile(SHIPPED / name, home / name)

    crate = ROCrate(version="1.1")
    crate.metadata.extra_terms |= SHA256
    files = [_file(crate, home, path) for path in _files(home)]
    _describe(crate, planned, runs)
    actions = [
        _action(crate, entry, runs[entry["id"]], results) for entry in planned["experiments"]
    ]
    run = _workflow_run(crate, home, files, actions)
    # No earlier than what it describes, should the clock of another machine be ahead of this one's.
    crate.datePublished = max(_utc(now_ns), run["endTime"])
    write_json(home / CRATE_FILE, crate.metadata.generate())
    return home / CRATE_FILE


def _files(home: Path) -> Iterable[Path]:
    """Files of the study's directory, minus workflow files and earlier crates."""
    for path in sorted(home.rglob("*")):
        name = str(path.relative_to(home))
        if path.is_file() and path.suffix not in LEFT_OUT and name not in (*WORKFLOW, CRATE_FILE):
            yield path


def _file(crate: ROCrate, home: Path, path: Path) -> Entity:
    kind = mimetypes.guess_type(path.name)[0] or "application/vnd.apache.parquet"
    facts = {
        "name": path.name,
        "encodingFormat": kind,
        "contentSize": path.stat().st_size,
        "sha256": sha256_of(path),
    }
    return crate.add_file(path, str(path.relative_to(home)), properties=facts)


def _describe(crate: ROCrate, planned: Mapping[str, Any], runs: Mapping[str, Run]) -> None:
    """Root entity of the study; authors and license are those of CITATION.cff.

    How many of its experiments were rehearsed, too.
    """
    citation = yaml.safe_load((SHIPPED / "CITATION.cff").read_text("utf-8"))
    crate.name = planned["title"]
    crate.description = planned["description"] or planned["title"]
    if rehearsed := sum(run.time_source == REHEARSED for run in runs.values()):
        crate.description += f" {NOT_MEASURED.capitalize()}: {rehearsed} of {len(runs)} runs."
    crate.license = _add(
        crate,
        f"https://spdx.org/licenses/{citation['license']}",
        "CreativeWork",
        citation["license"],
    )
    authors = [
        _add(
            crate,
            f"#author-{number}",
            "Organization" if "name" in author else "Person",
            _name(author),
        )
        for number, author in enumerate(citation["authors"])
    ]
    crate.root_dataset["author"] = _single(authors)
    crate.root_dataset["keywords"] = ", ".join(citation["keywords"])
    crate.root_dataset["conformsTo"] = [
        _add(crate, profile, "CreativeWork", profile.split("/")[-2], version=profile.split("/")[-1])
        for profile in PROFILES
    ]


def _name(author: Mapping[str, str]) -> str:
    return author.get("name") or f"{author['given-names']} {author['family-names']}"


def _action(crate: ROCrate, entry: Mapping[str, Any], run: Run, results: Path) -> Entity:
    """An experiment: what it varies, when it ran, and the hash of its record."""
    begin, end = _times(run)
    settings = [
        _add(crate, f"#{entry['id']}-{key}", "PropertyValue", key, value=str(value))
        for key, value in entry["varied"].items()
    ]
    record = _add(
        *(crate, f"#{entry['id']}-record", "PropertyValue", f"SHA-256 of {RUN_FILE}"),
        value=sha256_of(experiment_directory(results, entry["id"]) / RUN_FILE),
    )
    return _add(
        *(crate, f"#{entry['id']}", "CreateAction", entry["label"] or entry["id"]),
        description=f"{run.time_source} experiment {entry['id']}{mark_of(run.time_source)}",
        startTime=begin,
        endTime=end,
        actionStatus=COMPLETED,
        object=[*settings, record],
    )


def _times(run: Run) -> tuple[str, str]:
    """When a run began and ended by the wall clock.

    The repeats of run.json do not tell: those of a modeled run are in virtual time.
    """
    clock = run.record.clock
    if (begin_ns := clock.run_start_utc_ns) is None:
        raise BadInput(
            f"{run.directory / RUN_FILE}: clock.run_start_utc_ns is not there, so that it is not "
            "known when the run began; run it again with `kvscope run --force`"
        )
    end_ns = clock.run_end_utc_ns
    if end_ns is None:  # of an earlier version, which tells how long the run took
        end_ns = begin_ns + round(run.record.timings_s.get("total", 0.0) * NANOSECONDS)
    return _utc(begin_ns), _utc(max(begin_ns, end_ns))  # the clock may have been set back


def _report_times(home: Path, made: Iterable[Entity], measured: str) -> tuple[str, str]:
    """When the first and the last file of the report were written, after all was `measured`.

    Older files are of an earlier report.
    """
    written = sorted(_utc((home / file.id).stat().st_mtime_ns) for file in made)
    return next((at for at in written if at >= measured), written[-1]), written[-1]


def _utc(nanoseconds: int) -> str:
    """An instant in ISO 8601; such texts are in order of time."""
    moment = datetime.fromtimestamp(nanoseconds // 10**6 / 1e3, UTC)
    return moment.isoformat(timespec="milliseconds")


def _workflow_run(
    crate: ROCrate, home: Path, files: list[Entity], experiments: list[Entity]
) -> Entity:
    """The workflow, its steps and tools, and what each of them did; returns its run."""
    workflow, steps, tools = _workflow(crate, home)
    inputs = [file for file in files if file.id == "manifest.json"]
    outputs = [file for file in files if file.id != "manifest.json"]
    done = {"agent": crate.root_dataset["author"], "actionStatus": COMPLETED}
    ends = {"object": inputs, "result": outputs}
    for experiment in experiments:
        experiment["instrument"], experiment["agent"] = tools[0], done["agent"]
        experiment["result"] = _single([file for file in outputs if file.id == "metrics.parquet"])
    measured = max(experiment["endTime"] for experiment in experiments)
    begin, end = _report_times(home, outputs, measured)
    words = {"description": "kvscope report", "instrument": tools[1], **done, **ends}
    words |= {"startTime": begin, "endTime": end}
    report = _add(crate, "#report", "CreateAction", "Tables, figures and page", **words)
    parts = [*experiments, report]
    done["startTime"] = min(part["startTime"] for part in parts)
    done["endTime"] = max(part["endTime"] for part in parts)
    words = {"description": "snakemake", "instrument": workflow, **done, **ends}
    run = _add(crate, "#workflow-run", "CreateAction", "Run of the workflow", **words)
    crate.root_dataset["mentions"] = [run, *experiments, report]

    controls = [
        _add(crate, f"{step.id}-run", "ControlAction", step["name"], instrument=step, object=data)
        for step, data in zip(steps, (experiments, [report]), strict=True)
    ]
    engine = _add(
        *(crate, "https://snakemake.github.io", "SoftwareApplication", "Snakemake"),
        version=_version("snakemake"),
        url="https://snakemake.github.io",
    )
    words = {"instrument": engine, "object": controls, "result": run}
    _add(crate, "#orchestration", "OrganizeAction", "Run of Snakemake", **done | words)
    return run


def _workflow(crate: ROCrate, home: Path) -> tuple[Entity, list[Entity], list[Entity]]:
    """The workflow, its steps, and the tool of each step."""
    main, *rules = WORKFLOW
    language = {"lang": "snakemake", "lang_version": _version("snakemake")}
    kinds = {"@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"]}
    workflow = crate.add_workflow(home / main, main, main=True, properties=kinds, **language)
    workflow["name"] = "kvscope: from a study's configuration to its page"
    workflow["version"] = _version("kvscope")
    workflow["encodingFormat"] = "text/x-python"
    steps, tools = [], []
    for position, (rule, (name, does)) in enumerate(STEPS.items()):
        words = {"version": _version("kvscope"), "description": f"{name} {does}"}
        tool = _add(crate, f"#{name.replace(' ', '-')}", "SoftwareApplication", name, **words)
        words = {"position": str(position), "workExample": tool}
        steps.append(_add(crate, f"#step-{rule}", "HowToStep", rule, **words))
        tools.append(tool)
    workflow["hasPart"], workflow["step"] = tools, steps
    for name in rules:
        facts = {"name": Path(name).name, "encodingFormat": "text/x-python"}
        crate.add_file(home / name, name, properties=facts)
    return workflow, steps, tools


def _add(crate: ROCrate, id_: str, kind: str, name: str, **properties: Any) -> Entity:
    """An entity of the crate that is no file."""
    entity = ContextEntity(crate, id_, properties={"@type": kind, "name": name})
    for key, value in properties.items():
        entity[key] = _single(value)
    return crate.add(entity)


def _single(value: Any) -> Any:
    """The only item of a list of length 1, as RO-Crate wants it; else the value."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
