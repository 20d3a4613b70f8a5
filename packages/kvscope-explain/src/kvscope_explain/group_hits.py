"""Look-ups in the prefix cache of a model with several KV groups, of a recorded server."""

from collections.abc import Mapping, Sequence

from kvscope.api.runs import RunView
from kvscope.api.tables import kv_kinds
from kvscope_explain import tokens
from kvscope_explain.tokens import Kept


class GroupHits:
    """What each admitted request could have been given by each KV group."""

    def __init__(self, repeat: RunView) -> None:
        self._kinds = [str(kind) for kind in repeat.kv_groups["kind"]]
        columns = ("step", "request_id", "group_hit_tokens")
        rows = zip(*(repeat.batch[name] for name in columns), strict=True)
        self._hits: Mapping[tuple[int, str], Sequence[int]] = {
            (int(step), str(name)): list(map(int, hits))
            for step, name, hits in rows
            if hits is not None
        }

    @property
    def several(self) -> bool:
        """Whether a hit takes more than the blocks of one group that keeps all tokens."""
        return len(self._kinds) > 1 or not all(kv_kinds.kind_of(k).keeps_all for k in self._kinds)

    def kept(self, step: int, request_id: str) -> Kept | None:
        """What the groups had as a pass admitted a request; None if that was not told."""
        hits = self._hits.get((step, request_id))
        if hits is None:
            return None
        kinds = map(kv_kinds.kind_of, self._kinds)
        pairs = [*zip(kinds, hits, strict=True)]
        whole = [count for kind, count in pairs if kind.keeps_all]
        part = [count for kind, count in pairs if not kind.keeps_all]
        names = dict.fromkeys(kind.vllm_name for kind, _ in pairs if not kind.keeps_all)
        return Kept(min(whole, default=0), min(part, default=0), tuple(names))


def cause_of(kept: Kept | None, end: int, prompt: int, block_tokens: int) -> str:
    """Why a request of `prompt` tokens did not find those up to `end`, which had been computed."""
    block_end = -(-end // block_tokens) * block_tokens
    if block_end > prompt:
        return tokens.SHORT
    if block_end == prompt:
        return tokens.LAST
    if kept is None:
        return tokens.UNTOLD
    return tokens.STATE if kept.whole_tokens >= block_end else tokens.EVICTED
