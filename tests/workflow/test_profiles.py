"""Ways to call Snakemake: by itself, with a profile, from where the catalogue looks."""

import subprocess
import sys

import pytest

from .test_snakemake import LOUD, Checkout

pytestmark = pytest.mark.workflow


@pytest.mark.parametrize(
    "words", [(), ("--profile", "profiles/local"), ("--snakefile", "workflow/Snakefile")]
)
def test_every_way_plans_the_whole_study(tmp_path, words):
    checkout = Checkout(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--dry-run", *words, *LOUD, "--config", "study=two"],
        cwd=checkout.path,
        env=checkout.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "run_experiments 1" in " ".join(done.stdout.split()), done.stdout
    assert len(checkout.ids()) == 2
