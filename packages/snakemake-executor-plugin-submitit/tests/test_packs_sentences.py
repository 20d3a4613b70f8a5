"""Impossible input is refused in one sentence with the value, what is expected, and where."""

import math
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_executor_plugin_submitit import LIMITS, ExecutorSettings, configuration
from stand_in import StandIn
from submitit_packs import schedulers, sites
from submitit_packs.controller import Controller
from submitit_packs.directory import PackDirectory
from submitit_packs.errors import BadSettings, PackError
from submitit_packs.model import Member, Pack
from submitit_packs.planner import Settings
from submitit_packs.sites import Site

GOOD = "name: mine\nscheduler: slurm\nqueues:\n  - {name: long, nodes: [1, 4]}\n"


def test_a_users_own_site(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    site = sites.load(str(path))
    assert (site.name, site.queue("long").max_nodes) == ("mine", 4)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "which is no file; there are local, polaris, slurm, or the path of your own"),
        (b"\xff\xfe", "is no text in UTF-8"),
        (b"name: [", "is no YAML"),
        (b"", "is no site, which has name, scheduler and queues"),
        (b"- a\n", "is no site, which has name, scheduler and queues"),
        (b"name: mine\n", "has no scheduler"),
        (GOOD.replace("name: mine", "nam: mine").encode(), "unknown keys nam"),
        (GOOD.replace("nodes", "nods").encode(), "queue long has unknown keys nods"),
        (GOOD.replace("[1, 4]", "[1, 4], walltime: [1, 2]").encode(), "is not a site's descript"),
        (GOOD.encode() + b"gpus_per_node: many\n", "is 'many', which is no number of GPUs"),
        (GOOD.replace("[1, 4]", "[a, b]").encode(), "is not a site's description"),
    ],
)
def test_a_site_that_cannot_be_used(tmp_path, content, sentence):
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadSettings, match=re.escape(sentence)) as caught:
        sites.load(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_site_that_cannot_be_read(tmp_path):
    with pytest.raises(BadSettings, match=r"cannot be read \(Is a directory\)"):
        sites.load(str((tmp_path / "mine.yaml").mkdir() or tmp_path / "mine.yaml"))


def test_an_unknown_scheduler():
    with pytest.raises(BadSettings, match="scheduler is 'lsf' but must be pbs, slurm or local"):
        schedulers.of("lsf")


def test_pbs_without_its_package(monkeypatch):
    for name in ("submitit_pbs", "submitit_packs.schedulers.pbs"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "submitit_packs.schedulers.pbs")
    with pytest.raises(BadSettings, match="PBS needs the package submitit-pbs: pip install"):
        schedulers.of("pbs")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"length": -5}, "length is -5 but must be a number from 1 to 527040"),
        ({"length": "soon"}, "length is 'soon' but must be a number from 1 to"),
        ({"length": math.nan}, "length is nan but must be a number from 1 to"),
        ({"length": math.inf}, "length is inf but must be a number from 1 to"),
        ({"length": True}, "length is True but must be a number from 1 to"),
        ({"max_nodes": 0}, "max-nodes is 0 but must be a whole number from 1 to"),
        ({"min_nodes": 1.5}, "min-nodes is 1.5 but must be a whole number from 1 to"),
        ({"gpus_per_node": -1}, "gpus-per-node is -1 but must be a whole number from 0 to"),
        ({"min_fill": 7}, "min-fill is 7 but must be a number from 0 to 1"),
        ({"wait": -1}, "wait is -1 but must be a number from 0 to"),
        ({"margin": -1}, "margin is -1 but must be a number from 0 to"),
        ({"startup": -1}, "startup is -1 but must be a number from 0 to"),
        ({"queues": ["a", "b"]}, "queues is ['a', 'b'] but must be text"),
        ({"options": "pbs_select=4"}, "option pbs_select is set by the packs"),
        ({"options": "pbs_nosuch=1"}, "option pbs_nosuch is none; there are pbs_account, "),
        ({"options": "timeout_min=600"}, "option timeout_min is none; there are pbs_account, "),
        ({"options": "slurm_qos=high"}, "option slurm_qos is none; there are pbs_account, "),
        ({"options": "slurm_setup=[a]"}, "option slurm_setup is none; there are pbs_account, "),
        ({"options": "pbs_walltime=60"}, "option pbs_walltime is set by the packs; there are "),
        ({"options": "pbs_job_name=mine"}, "option pbs_job_name is set by the packs; there are "),
        ({"options": "pbs_setup=module"}, "option pbs_setup is 'module' but must be a list, [a]"),
        ({"options": "pbs_resources=x"}, "option pbs_resources is 'x' but must be a mapping"),
        ({"options": "pbs_chunk=["}, "option 'pbs_chunk=[': '[' is no value of YAML"),
        ({"site": "local", "options": "local_x=1"}, "option local_x is none; there are no options"),
    ],
)
def test_a_setting_that_cannot_be_used(settings, sentence):
    with pytest.raises(BadSettings, match=re.escape(sentence)) as caught:
        configuration(ExecutorSettings(**{"site": "polaris"} | settings))
    assert "\n" not in str(caught.value)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=3))
            for name in LIMITS
        },
    )
)
def test_numbers_are_within_their_limits_or_refused(numbers):
    try:
        _, settings = configuration(ExecutorSettings(site="polaris", **numbers))
    except BadSettings:
        return
    assert settings.length_s >= 60
    assert settings.min_nodes >= 1
    assert settings.max_nodes is None or settings.max_nodes >= 1
    assert 0 <= settings.min_fill <= 1
    assert min(settings.wait_s, settings.startup_s, settings.margin_s) >= 0


def test_options_of_each_batch_system_are_taken():
    given = ExecutorSettings(site="polaris", options="pbs_filesystems=home:eagle,pbs_place=free")
    _, settings = configuration(given)
    assert settings.options == {"pbs_filesystems": "home:eagle", "pbs_place": "free"}
    schedulers.check_options("slurm", {"slurm_qos": "high", "slurm_mem": 0})


@pytest.mark.parametrize("name", ["pbs", "slurm"])
def test_a_script_that_is_only_shown_leaves_nothing(tmp_path, monkeypatch, name):
    monkeypatch.setattr("submitit.SlurmExecutor.affinity", lambda _: 1)  # as where Slurm is
    pack = Pack("pack-1", "debug", 1, 1, 1, 600, (Member("m", "m", "true", "/", 1, 60),))
    directory = PackDirectory(tmp_path / "packs" / "pack-1")
    text = schedulers.of(name, "physics").script(pack, directory)
    assert str(directory.path) in text
    assert list(tmp_path.iterdir()) == []


def test_a_parameter_that_pbs_cannot_take_is_a_sentence_before_it_is_submitted(tmp_path):
    options = {"pbs_setup": ["true"], "pbs_wall": 1}
    pack = Pack("pack-1", "debug", 1, 1, 1, 600, (), options=options)
    with pytest.raises(BadSettings, match="wall"):
        schedulers.of("pbs").script(pack, PackDirectory(tmp_path / "pack-1"))


def test_a_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PackError, match=r"packs cannot be kept in .*/file/packs: Not a directory"):
        Controller(tmp_path / "file" / "packs", Site("here", "x"), Settings(), StandIn())
