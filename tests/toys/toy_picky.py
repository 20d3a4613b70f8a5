"""An overflow policy whose KV connector is the package's own."""

from typing import ClassVar

from kvscope.api.policies import overflow


class Picky(overflow.Swap):
    """Asks for a swap of every victim; its connector takes some of them."""

    connector: ClassVar[str] = "toy_connector:PickyConnector"
