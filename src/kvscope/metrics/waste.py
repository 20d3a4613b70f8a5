"""Metrics of wasted work: wrongly guessed tokens, and aborted requests."""

from kvscope.metrics.metric import metric, ratio
from kvscope.tables.run_view import RunView


@metric("share", "Drafts accepted", better=1, optional=True, column=108)
def draft_acceptance_rate(records: RunView) -> float:
    """ΣB.accepted_tokens / ΣB.draft_tokens: of the tokens that speculative decoding guessed, those
    that the model would have given; no value without it
    """
    return ratio(
        float(records.batch["accepted_tokens"].sum()), float(records.batch["draft_tokens"].sum())
    )


@metric("requests", "Aborted requests", better=-1, display="a repeat", optional=True, column=110)
def aborted_requests(records: RunView) -> float:
    """rows of R with `aborted`"""
    return float(records.requests["aborted"].sum())


METRICS = (draft_acceptance_rate, aborted_requests)
