"""A study in a pack of four on a node with four GPUs: each member has a GPU of its own."""

from importlib.util import find_spec

import pytest

from kvscope_rehearsal.node import Gpus, uuid_of
from rehearsals import HOST_POOL, SMALL, Rehearsal

pytestmark = [pytest.mark.workflow, pytest.mark.slow, pytest.mark.timeout(900)]

COUNT = 4


@pytest.fixture(scope="module")
def pack(tmp_path_factory, require, forked) -> Rehearsal:
    """Four experiments that are compared with none of the others, by profiles/local-gpus."""
    require("submitit_packs", find_spec("submitit_packs") is not None, "run `make env`")
    rehearsal = Rehearsal(tmp_path_factory.mktemp("pack"), require, Gpus(count=COUNT))
    (rehearsal.path / "envs").mkdir()
    settings = SMALL | HOST_POOL | {"overflow": "swap", "repeats": 1}
    rehearsal.add_study("four", {"set": settings, "product": {"seed": [*range(COUNT)]}})
    done = rehearsal.snakemake("--profile", "profiles/local-gpus", study="four")
    assert done.returncode == 0, done.stdout
    return rehearsal


def test_every_run_is_valid(pack):
    assert len(pack.experiments) == COUNT
    pack.assert_valid()


def test_each_has_a_gpu_of_its_own_and_names_it(pack):
    used = [
        [gpu["uuid"] for gpu in pack.facts(run)["placement"]["gpus"]["before"]]
        for run in pack.experiments
    ]
    assert sorted(used) == [[uuid_of(n)] for n in range(COUNT)]
    for run in pack.experiments:
        assert len(pack.facts(run)["hardware"]["gpus"]) == 1
