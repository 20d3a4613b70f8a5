"""Every command in README.md, config/README.md and docs/ is run as printed.

The documents are those of the checkout, so all of its packages must be installed.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml
from kernel_traces import PROMPTS, Artifact

from kvscope.plan import layers

pytestmark = pytest.mark.workflow

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "config/README.md",
    *sorted(
        f"docs/{path.name}"
        for path in ROOT.glob("docs/*.md")
        if not path.is_symlink() or ROOT / "packages" in path.resolve().parents
    ),
)

# Run as printed. Any other command, and any with a placeholder, needs a row below.
RUN = ("kvscope", "snakemake", "python", ".")
# A command that is not run as printed, preceded by its document if only there; what is run
# in its place, if anything is; and why.
INSTEAD: tuple[tuple[str, str | None, str], ...] = (
    (
        r"((?:\w+=\S* )*)make (.+)",
        r"\1make -n \2",
        "installs, or runs these tests: make expands its recipe",
    ),
    (r"\.ci/run", None, "runs these tests"),
    (r"apt-get install .+", None, "changes the machine; .ci/run installs these packages"),
    (
        r"docs/EXTENDING\.md (pip|kvscope) .+",
        None,
        "installs a package; tests/engine/test_extending.py follows this document",
    ),
    (
        r"(README|docs/RECORDING)\.md kvscope (record|watch|collect|analyse|check|explain|report|"
        r"replay) .*recording.*",
        None,
        "needs a server; kvscope-record/tests/engine records one",
    ),
    (
        r"docs/RECORDING\.md (kvscope plan|snakemake .+) study=mine.*",
        None,
        "needs the study of a recording; kvscope-record/tests/unit/test_replay.py plans one",
    ),
    (
        r"docs/POLARIS\.md .+",
        None,
        "needs a login node; kvscope-cluster/tests plan and submit there",
    ),
    (
        r"README\.md (snakemake --profile profiles/(polaris|slurm|local-gpus)|kvscope submit|"
        r"kvscope status .+--watch).*",
        None,
        "needs a cluster, or does not end; kvscope-cluster/tests submit and look",
    ),
    (
        r"(snakemake .+ --config study=(?:crossover|hybrid-cpu|calibration-cpu over.+))",
        r"\1 --dry-run",
        "takes minutes; tests/engine runs such experiments",
    ),
    (
        r"docs/(REPRODUCING|SCORE)\.md kvscope (run -m|import|score|references) .+",
        None,
        "takes an hour, or reads files that others publish; tests/unit reads such files",
    ),
    (
        r"docs/SCORE\.md (pip install|python \S*bench/vidur_steps\.py) .+",
        None,
        "needs Vidur, which the project does not depend on",
    ),
    (
        r"docs/MODEL\.md kvscope (calibrate calibration-cpu|run device=here ).+",
        None,
        "needs the measurements of a whole study; test_calibration.py of kvscope-model fits",
    ),
    (
        r"(kvscope calibrate --published)(?: --samples \d+)?( --out FILE)?",
        r"\1 --samples 2\2",
        "takes a minute; test_calibration.py of kvscope-model fits",
    ),
    (r"\. …/kvscope/(.+)", r". \1", "… is where kvscope lies: here"),
    (r"README\.md pip .+", None, "installs; tests/workflow/test_wheel.py installs the wheel, too"),
    (
        r"kvscope (new|check|crate) (?:results/studies/)?NAME",
        r"kvscope \1 --help",
        "NAME is for a name",
    ),
    (
        r"workflow/scripts/install-nsys\.sh .+",
        None,
        "downloads; tests/nsys/test_nsys_install.py installs it",
    ),
    (
        r"(snakemake --snakefile .+)",
        r"shipped=$(kvscope shipped); \1 --dry-run",
        "takes a minute; tests/workflow/test_wheel.py runs it",
    ),
    (r"(kvscope compare) (\S+) /other/\S+", r"\1 \2 \2", "/other is for another result set"),
    (
        r"(\S*kvscope run) … (profiler=none)",
        r"\1 workload.num_requests=2 \2 --out brief",
        "… is for settings",
    ),
    (
        r"((?:kvscope rehearse .+)?snakemake .+ (?:remeasure=|overrides=|-R ).+)",
        r"\1 --dry-run",
        "takes minutes; tests/workflow/test_snakemake.py measures in these ways",
    ),
    (r"(\S*python bench/recording\.py) --rounds \d+ (.+)", r"\1 --rounds 1 \2", "takes minutes"),
    (
        r"(\S*python packages/kvscope-record/bench/record\.py) .+",
        r"\1 --help",
        "starts engines: minutes for its rounds",
    ),
    (
        r"kvscope bytes (?:models/.+|openai/.+|MODEL.*)",
        None,
        "these are for a model's config.json; test_kv_planning.py of kvscope-model plans some",
    ),
    (
        r"docs/EXPLAIN\.md kvscope explain .+",
        None,
        "ID is for an experiment; kvscope-explain/tests explain some",
    ),
    (r"(\S*python bench/startup_logs\.py).*", r"\1 --help", "plans for half an hour"),
    (r"(python bench/profiler\.py) --rounds \d+ (.+)", r"\1 --rounds 4 \2", "takes a minute"),
    (r"(\S*python bench/tracing\.py) .+", r"\1 --help", "starts four engines: minutes for a round"),
    (
        r"(\S*python bench/collect\.py) (.+)",
        r"\1 --kernels 4000 --calls 4000 --ranges 4000 \2",
        "takes minutes",
    ),
    (r"(\S*python bench/collect_events\.py) (.+)", r"\1 --events 200000 \2", "takes a minute"),
    (r"(\S*python bench/plan\.py) (.+)", r"\1 --experiments 10 \2", "takes half a minute"),
    (r"(python bench/adaptive_regret\.py) --seeds (\d+)-\d+", r"\1 --seeds \2-\2", "takes minutes"),
    (
        r"(\S*kvscope doctor) --noise",
        r"\1 --help",
        "takes a minute; tests/engine/test_rounds.py measures",
    ),
    (r"(\S*python bench/cluster/campaign\.py) .+", r"\1 --help", "takes minutes"),
    (r"(\S*python bench/net_control\.py) .+", r"\1 --help", "needs runs that preempt"),
    (
        r"(\S*bench/\S+\.sh)(?: --(?:flexgen|rehearse))?",
        r"bash -n \1",
        "takes minutes or a GPU: bash reads it only",
    ),
    (
        r"(\S*pytest .+)",
        r"\1 --collect-only -q",
        "takes minutes; the suite runs it for other seeds",
    ),
)
# Commands that only plan: for them studies are as they are.
PLANS = r"kvscope (plan|new)\b|snakemake --snakefile"
# Commands of which others have the parts: studies like those that run, long measurements.
LONG = (
    r".*study=(league|crossover|hybrid|prefix-caching)\b|.*bench/(adaptive|overflow|profiler|rec)"
)
# Commands that depend on a process's imports are not forked from a process with vLLM.
OF_ITS_OWN = r"kvscope (rehearse|doctor)"
# Exit codes other than 0 that the text gives a meaning.
MAY_EXIT: dict[str, tuple[int, ...]] = {r"\S*kvscope doctor": (0, 1)}


@dataclass(frozen=True)
class Printed:
    """A command, without its comment, and where it is printed: in a block, or in running text."""

    document: str
    line: int
    command: str
    inline: bool = False

    @property
    def program(self) -> str:
        """Its first word after variables are set."""
        return re.sub(r"^(\w+=\S* )+", "", self.command).split()[0]

    def __str__(self) -> str:
        return f"{self.document}:{self.line} {self.command}"


# In an indented block that is not all commands, these words begin a command.
PROGRAMS = {
    *(".", "apt-get", "bash", "cd", "curl", "export", "git", "kvscope", "make", "nsys", "pip"),
    *("python", "pytest", "qsub", "qstat", "rsync", "salloc", "sbatch", "scp", "snakemake"),
    *("source", "squeue", "srun", "ssh", "sudo", "tar", "wget"),
}


def printed_in(document: str, text: str) -> Iterator[Printed]:
    """The commands of a Markdown document: of shell fences, of indented lines, of inline code."""
    fence = None
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if line.lstrip().startswith("```"):
            fence = None if fence is not None else line.strip().removeprefix("```")
            continue
        result, inline = [], False
        if fence in ("bash", "sh", "console", "shell") or (fence is None and line[:4] == "    "):
            while line.endswith("\\"):
                line = line[:-1].rstrip() + " " + next(lines)[1].strip()
            result = [re.sub(r"(^|\s+)#\s.*", "", line).strip().removeprefix("$ ")]
        elif fence is None:
            inline = True
            while line.count("`") % 2:  # inline code that goes on in the next line
                line += " " + next(lines)[1].strip()
            result = [span for span in re.findall(r"`([^`]+)`", line) if is_inline_command(span)]
        for command in filter(None, result):
            printed = Printed(document, number, command, inline)
            if fence or is_program(printed.program):
                yield printed


def is_program(word: str) -> bool:
    return word in PROGRAMS or word.startswith(".venv/bin/") or is_script(word)


def is_script(word: str) -> bool:
    return "/" in word and (ROOT / word).is_file() and os.access(ROOT / word, os.X_OK)


def is_inline_command(span: str) -> bool:
    """Whether inline code is a command and not the name of a program or of a file."""
    words = span.split()
    return len(words) > 1 or is_script(span)


PRINTED = [
    printed
    for document in DOCUMENTS
    for printed in printed_in(document, (ROOT / document).read_text(encoding="utf-8"))
]


def excepted(pattern: str, printed: Printed) -> re.Match[str] | None:
    """The match of a pattern of INSTEAD with a command, or with its document and it."""
    whole = f"{printed.document} {printed.command}"
    return re.fullmatch(pattern, printed.command) or re.fullmatch(pattern, whole)


def to_run(printed: Printed) -> str | None:
    """Command that is run for a printed one; None to skip it. Fails if that is not settled."""
    for pattern, instead, _ in INSTEAD:
        if result := excepted(pattern, printed):
            return None if instead is None else result.expand(instead)
    if "…" in printed.command or Path(printed.program).name not in (*RUN, ""):
        pytest.fail(f"{printed}: no row of INSTEAD says what to do with it")
    if printed.inline and re.fullmatch(r"kvscope \w+", printed.command):
        return f"{printed.command} --help"  # a sentence about this command
    return printed.command


LEFT_OUT = {".git", ".venv", ".nsys", ".cache", ".snakemake", "results", "build"}
CACHES = shutil.ignore_patterns("__pycache__", ".*_cache")


class Checkout:
    """A copy of the checkout in which commands are run, with what the documents presuppose."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        for source in ROOT.iterdir():
            if source.is_dir() and source.name not in LEFT_OUT:
                shutil.copytree(source, path / source.name, ignore=CACHES)
            elif source.is_file():
                shutil.copy(source, path)
        (path / "results").mkdir()
        (path / ".venv").symlink_to(sys.prefix)
        self.run = cache(self._run)  # a command that is printed twice is run once

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        more = {"PATH": f"{self.path}/.venv/bin:{os.environ['PATH']}"}
        if not re.search(OF_ITS_OWN, command):
            more["KVSCOPE_WARM_COMMANDS"] = "1"
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.path,
            env=os.environ | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def _keys_of(config: Path, workload: str) -> set[str]:
    """The keys of a workload's option file and of those that it is made of."""
    option = yaml.safe_load((config / "workload" / f"{workload}.yaml").read_text(encoding="utf-8"))
    bases = [name for name in option.get("defaults", []) if name != "_self_"]
    results = {f"workload.{key}" for key in option}
    return results.union(*(_keys_of(config, name) for name in bases))


def shrink(config: Path) -> None:
    """Reduce every study, also of packages, to few requests; profile nothing by default."""
    defaults = config / "config.yaml"
    text = defaults.read_text(encoding="utf-8")
    text = text.replace("profiler: auto", "profiler: none").replace("repeats: 3", "repeats: 2")
    defaults.write_text(text, encoding="utf-8")
    for name, path in layers.options(config, "study").items():
        study = yaml.safe_load(path.read_text(encoding="utf-8"))
        grid = study["grids"][0]
        varied = {key: values[0] for key, values in grid.get("product", {}).items()}
        for block in grid.get("linked", [])[:1]:
            varied |= block if isinstance(block, dict) else block[0]
        experiment = grid["set"] | varied | {"repeats": 2}
        turns = "workload.num_conversations" in _keys_of(
            config, experiment.get("workload", "fixed")
        )
        experiment["workload.num_conversations" if turns else "workload.num_requests"] = 2
        if experiment.pop("cache.oversubscription", None):  # two requests would fit into nothing
            experiment["cache.blocks"] = 1024
        study["figures"] = study.get("figures", [])[:1] or ["throughput"]
        for asked in ("compare", "levels"):  # what they are about varies no longer
            study.pop(asked, None)
        study["grids"] = [{"name": grid["name"], "set": experiment}]
        (config / "study" / f"{name}.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory, require, forked) -> Checkout:
    """Directory in which the commands are run, one after the other, with short studies."""
    require("kvscope's command", (Path(sys.prefix) / "bin" / "kvscope").exists(), "run `make env`")
    made = Checkout(tmp_path_factory.mktemp("documented") / "kvscope")
    shrink(made.path / "config")
    Artifact(PROMPTS, "lossy").serve().files(made.path)
    return made


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Directory with unchanged studies: for commands that only plan."""
    return Checkout(tmp_path_factory.mktemp("untouched") / "kvscope")


@pytest.mark.packages
@pytest.mark.parametrize(
    "printed",
    [
        pytest.param(one, marks=[pytest.mark.exhaustive] * bool(re.match(LONG, one.command)))
        for one in PRINTED
    ],
    ids=str,
)
def test_a_printed_command_works(printed: Printed, checkout: Checkout, untouched: Checkout):
    command = to_run(printed)
    if command is None:
        return
    place = untouched if re.match(PLANS, printed.command) else checkout
    done = place.run(command)
    allowed = next((v for k, v in MAY_EXIT.items() if re.fullmatch(k, printed.command)), (0,))
    assert done.returncode in allowed, f"{printed}\n{command}\n{done.stdout}"
    assert "Traceback" not in done.stdout


def test_every_exception_is_of_a_printed_command():
    for pattern, _, _ in INSTEAD:
        assert any(excepted(pattern, printed) for printed in PRINTED), pattern


def test_commands_are_found_wherever_they_are_printed():
    text = (
        "`make demo` and `kvscope` with `ONE=1 make env TWO=…`, not `title: x`,\n"
        "and `make\nlint`.\n\n"
        "    kvscope plan 'a b'   # a comment\n    title: x\n    .venv/bin/new --now\n\n"
        "```bash\n$ unknown \\\n    words\n```\n\n```yaml\nkvscope: 1\n```\n"
    )
    assert [(p.line, p.command) for p in printed_in("x.md", text)] == [
        (1, "make demo"),
        (1, "ONE=1 make env TWO=…"),
        (2, "make lint"),
        (5, "kvscope plan 'a b'"),
        (7, ".venv/bin/new --now"),
        (10, "unknown words"),
    ]


@pytest.mark.parametrize("command", ["unknown words", "git push", "kvscope run … --out mine"])
def test_a_command_without_a_row_fails(command: str):
    with pytest.raises(pytest.fail.Exception, match="no row of INSTEAD"):
        to_run(Printed("x.md", 1, command))
