"""What cannot be is one sentence that says what was given, what is expected, and where."""

import re
import sys

import pytest

from stand_in import StandIn
from submitit_packs import schedulers, sites
from submitit_packs.controller import Controller
from submitit_packs.errors import BadSettings, PackError
from submitit_packs.planner import Settings
from submitit_packs.sites import Site

GOOD = "name: mine\nscheduler: slurm\nqueues:\n  - {name: long, nodes: [1, 4]}\n"


def test_a_site_of_ones_own(tmp_path):
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


def test_a_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PackError, match=r"packs cannot be kept in .*/file/packs: Not a directory"):
        Controller(tmp_path / "file" / "packs", Site("here", "x"), Settings(), StandIn())
