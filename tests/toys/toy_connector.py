"""A KV connector that keeps half of its free host pool for later victims."""

from kvscope.api.policies import overflow
from kvscope.api.tables import actions
from kvscope.api.vllm import connectors


class PickyConnector(connectors.SwapConnector):
    """Takes a victim's blocks if as many would remain free as it takes."""

    def keep(
        self, action: actions.Action, request_id: str, tokens: int, blocks: overflow.VictimBlocks
    ) -> bool:
        if 2 * len(blocks) > self.pool.free:
            return False
        return super().keep(action, request_id, tokens, blocks)
