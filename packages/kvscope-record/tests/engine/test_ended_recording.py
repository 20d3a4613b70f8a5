"""Whichever way `kvscope record` is ended, the server that it started ends within seconds."""

import signal
import sys
from pathlib import Path

import pytest

from tests.ending import ENDS, assert_all_end, names

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.thorough]

# Options up to the command are nsys's; it runs the command as a child, as nsys does.
NSYS = """#!/bin/bash
[ "$1" = --version ] && { echo "NVIDIA Nsight Systems version 0.0"; exit; }
until [ "$1" = /bin/sh ]; do shift; done
"$@"; exit $?
"""


@pytest.mark.parametrize("way", ENDS, ids=str)
def test_the_recorded_server_ends_with_the_command(way: "signal.Signals | str", tmp_path: Path):
    nsys = tmp_path / "nsys"
    nsys.write_text(NSYS)
    nsys.chmod(0o755)
    words = ["record", "--nsys", "--out", str(tmp_path / "recording"), "--", "sleep", "613"]
    command = [sys.executable, "-m", "kvscope.cli", *words]
    variables = {"KVSCOPE_NSYS": str(nsys)}
    assert_all_end(command, names("sleep 613"), way, tmp_path, variables)
