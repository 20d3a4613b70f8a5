"""Reasons against a run, in words."""

from functools import cache

from kvscope.judge.checklist import every_oracle
from kvscope.judge.reason import REASONS

MEANINGS = {kind.name: kind.meaning.replace("`", "") for kind in REASONS}


def reason_in_words(name: str) -> str:
    """Meaning of a validity reason: for an oracle, the sentence that does not hold."""
    if sentence := _sentences().get(name):
        return f"violated: {sentence}"
    return MEANINGS.get(name, name.replace("_", " "))


@cache
def _sentences() -> dict[str, str]:
    return {oracle.name: oracle.sentence for oracle in every_oracle()}
