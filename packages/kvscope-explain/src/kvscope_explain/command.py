"""Explain why a request, or a run, took its time."""

import argparse
import json
from typing import TYPE_CHECKING

from kvscope.api.commands import EXIT_DONE, argument, command, flag, path
from kvscope.api.errors import BadInput

if TYPE_CHECKING:
    from kvscope_explain.life import Lives


@command(
    ("results/experiments/ID", "results/experiments/ID 7", "results/experiments/ID 7 --json"),
    path("run", "a run's directory"),
    argument("request", nargs="?", metavar="REQUEST", help="a request; without it, the whole run"),
    argument(
        "--repeat", type=int, metavar="N", help="the repeat; the first that counts by default"
    ),
    flag("--json", "print JSON"),
    order=170,
)
def explain(given: argparse.Namespace) -> int:
    """Explain why a request was slow: its life in lines, each with its time.

    A request waits, is prefilled, decodes, is preempted to make room for others, and resumes by
    copies or by computing its tokens again. Without a request: what all requests of a repeat spent
    their time on, and the ten waits that cost most.
    """
    from kvscope_explain import explained

    lives = _lives(given)
    if given.request is None:
        facts, lines = explained.run_facts(lives), explained.run_lines(lives)
    else:
        facts = explained.request_facts(lives, given.request)
        lines = explained.request_lines(lives, given.request)
    print(json.dumps(facts, indent=2) if given.json else "\n".join(lines))
    return EXIT_DONE


def _lives(given: argparse.Namespace) -> "Lives":
    from kvscope.api.runs import planned, read_records
    from kvscope_explain.life import Lives

    records = read_records(given.run)
    planned.confirm_settings(records)
    number = given.repeat if given.repeat is not None else min(records.timed, default=0)
    if number not in records.numbers:
        numbers = ", ".join(map(str, records.numbers)) or "none"
        raise BadInput(f"{given.run}: no repeat {number}; its repeats are {numbers}")
    return Lives(records.of_repeat(number), records.settings)
