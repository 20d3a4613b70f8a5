"""Accounts of tokens on the page, in the section of requests."""

from typing import Any

from kvscope.api.runs import RunView
from kvscope.api.sections import StudyData
from kvscope_explain.lives import explained
from kvscope_explain.misses import accounts_of
from kvscope_explain.token_words import heading, remedies, sentences
from kvscope_explain.tokens import Accounts


def tokens_of(study: StudyData, lives: dict[str, Any]) -> list[dict[str, Any]]:
    """The accounts of the runs of a section, and of the requests that it shows of each."""
    shown, _ = explained(study)
    made = []
    for run, life in zip(shown, lives["runs"], strict=True):
        repeat = run.records.of_repeat(min(run.records.timed))
        accounts = accounts_of(repeat) if isinstance(repeat, RunView) else None
        if accounts is not None:
            names = [request["id"] for request in life["requests"]]
            made.append(
                {
                    "id": run.id,
                    **_account(accounts, None),
                    "remedies": [*remedies(accounts, accounts.of(None))],
                    "requests": [{"id": name, **_account(accounts, name)} for name in names],
                }
            )
    return made


def _account(accounts: Accounts, request_id: str | None) -> dict[str, Any]:
    """A heading, and for each cause its share, its tokens and a sentence."""
    account = accounts.of(request_id)
    rows = sentences(accounts, request_id)
    return {
        "heading": heading(account),
        "rows": [[f"{count / account.tokens:.1%}", f"{count:,}", line] for count, line in rows],
    }
