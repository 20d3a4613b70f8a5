"""A KV connector that takes a victim's blocks if the pool then has room for another such victim."""

from kvscope.api.tables import actions
from kvscope.api.vllm import connectors


class PickyConnector(connectors.SwapConnector):
    """Keeps half of what is free in the pool for later victims."""

    def keep(
        self, action: actions.Action, request_id: str, tokens: int, blocks: tuple[int | None, ...]
    ) -> bool:
        return 2 * len(blocks) <= self.pool.free and super().keep(
            action, request_id, tokens, blocks
        )
