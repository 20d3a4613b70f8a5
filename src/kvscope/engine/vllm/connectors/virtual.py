"""The worker's half of a KV connector on a device without a worker: orders take virtual time."""

from abc import ABC, abstractmethod
from typing import Any

from vllm.v1.outputs import KVConnectorOutput

from kvscope.engine.vllm.link import Link


class VirtualWorker(ABC):
    """Carries out the orders of one engine's connector on the `link` of its virtual device.

    The class of a connector's orders, the `KVConnectorMetadata` of a pass, names its own as
    `virtual_worker`.
    """

    def __init__(self, link: Link) -> None:
        self.link = link

    @abstractmethod
    def before_pass(self, orders: Any) -> None:
        """Take the virtual time of the orders before the pass."""

    @abstractmethod
    def after_pass(self, orders: Any, empty: bool) -> KVConnectorOutput | None:
        """Take the virtual time of the orders after the pass; returns the worker's report, if any.

        `empty` is a pass that computes nothing.
        """
