"""Explain why a request, or a run, took its time."""

import argparse
import json
from typing import TYPE_CHECKING

from kvscope.api.commands import EXIT_DONE, argument, command, flag, path
from kvscope.api.errors import BadInput

if TYPE_CHECKING:
    from kvscope.api.runs import Records
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
    copies or by computing its tokens again. Its tokens were found in the prefix cache, or passes
    computed them, each for one cause. Without a request: what all requests of a repeat spent their
    time on, the ten waits that cost most, and the causes of all computed tokens.
    """
    from kvscope_explain import explained, token_words
    from kvscope_explain.misses import accounts_of

    repeat = _repeat(given)
    lives, accounts = _lives(repeat), accounts_of(repeat)
    if given.request is None:
        facts, lines = explained.run_facts(lives), explained.run_lines(lives)
    else:
        facts = explained.request_facts(lives, given.request)
        lines = explained.request_lines(lives, given.request)
    if accounts is not None:
        facts["tokens"] = token_words.facts(accounts, given.request)
        lines += ["", *token_words.lines(accounts, given.request)]
    print(json.dumps(facts, indent=2) if given.json else "\n".join(lines))
    return EXIT_DONE


def _repeat(given: argparse.Namespace) -> "Records":
    from kvscope.api.runs import planned, read_records

    records = read_records(given.run)
    planned.confirm_settings(records)
    number = given.repeat if given.repeat is not None else min(records.timed, default=0)
    if number not in records.numbers:
        numbers = ", ".join(map(str, records.numbers)) or "none"
        raise BadInput(f"{given.run}: no repeat {number}; its repeats are {numbers}")
    return records.of_repeat(number)


def _lives(repeat: "Records") -> "Lives":
    from kvscope_explain.life import Lives

    return Lives(repeat, repeat.whole.settings)
