"""Reasons against a run, in words."""

from kvscope.analyse.checklist import EVERY_ORACLE
from kvscope.analyse.reason import REASONS

SENTENCES = {oracle.name: oracle.sentence for oracle in EVERY_ORACLE}
MEANINGS = {kind.name: kind.meaning.replace("`", "") for kind in REASONS}


def reason_in_words(name: str) -> str:
    """What a validity reason means: of an oracle, the sentence that does not hold."""
    if name in SENTENCES:
        return f"violated: {SENTENCES[name]}"
    return MEANINGS.get(name, name.replace("_", " "))
