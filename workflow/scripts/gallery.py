"""The documentation's gallery: every figure, and the command that makes it.

    python workflow/scripts/gallery.py     runs the studies below (`make gallery`)

As a hook of mkdocs it adds the page GALLERY.md, with the pictures that were made in .cache/gallery.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

from mkdocs.structure.files import File, Files

from kvscope.plan.layers import SHIPPED
from kvscope.report.figures.registry import figures

PLACE = Path(".cache/gallery")
STUDIES = Path("results/studies")
# Studies on the modeled device; of a figure that several have, the first one's is shown.
COMMANDS = {
    "quickstart": "device=modeled batching=chunked overflow=recompute,swap,adaptive",
    "adhoc": (
        "device=offload_modeled device.policy=kv_only,act_only,hybrid model=opt-6.7b "
        "batching=prefill_first workload.num_requests=16"
    ),
}
HEAD = """
    # Gallery

    Each figure of the page of a study, with the command that makes it here. A study has the figures
    that its experiments have data for; which axes they have, its file declares
    ([Configuration](CONFIGURATION.md)). Times in these are modeled, not measured
    ([The modeled device](MODEL.md)). `make gallery` makes the pictures, `make docs` the page.
"""


def command(study: str) -> list[str]:
    """The command line that runs a study of the gallery."""
    named = [] if study == "adhoc" else [f"study={study}"]
    words = [*named, f"overrides={COMMANDS[study]}"]
    return ["snakemake", "--profile", "profiles/local", "--config", *words]


def make() -> int:
    """Run the studies, each in a directory of its own."""
    for study in COMMANDS:
        (PLACE / study).mkdir(parents=True, exist_ok=True)
        shutil.rmtree(PLACE / study / STUDIES, ignore_errors=True)  # figures are drawn anew
        shipped = ["--snakefile", str(SHIPPED / "Snakefile"), "--profile"]
        words = command(study)
        words[1:3] = [*shipped, str(SHIPPED / "profiles" / "local")]
        log = PLACE / study / "log.txt"
        with log.open("w") as file:
            done = subprocess.run(
                words, cwd=PLACE / study, stdout=file, stderr=file, env=os.environ
            )
        if done.returncode:
            print(f"{' '.join(command(study))} fails: {log}", file=sys.stderr)
            return 1
    return 0


def pictures() -> dict[str, tuple[str, Path]]:
    """Each figure that was made, the study that has it, and its PNG."""
    found: dict[str, tuple[str, Path]] = {}
    for study in COMMANDS:
        for path in sorted(PLACE.glob(f"{study}/results/studies/*/figures/*.png")):
            found.setdefault(path.stem, (study, path))
    return found


def page() -> str:
    """GALLERY.md."""
    made, parts = pictures(), [dedent(HEAD)]
    for name, figure in figures().items():
        parts += [f"## {figure.title}", f"`{name}`. {figure.caption}"]
        if name in made:
            study, _ = made[name]
            parts += [f"![{figure.title}](gallery/{name}.png)", f"    {_printed(command(study))}"]
        else:
            parts.append("No study of the gallery was run that has the data of this figure.")
    return "\n\n".join(parts) + "\n"


def _printed(words: list[str]) -> str:
    """A command line as a user types it."""
    pairs = (word.partition("=") for word in words)
    return " ".join(f'{k}="{v}"' if " " in v else f"{k}{sign}{v}" for k, sign, v in pairs)


def on_files(files: Files, config: Any) -> Files:
    """Mkdocs: add the page and the pictures."""
    files.append(File.generated(config, "GALLERY.md", content=page()))
    for name, (_, path) in pictures().items():
        files.append(
            File.generated(config, f"gallery/{name}.png", abs_src_path=str(path.resolve()))
        )
    return files


if __name__ == "__main__":
    sys.exit(make())
