"""A device for tests: vLLM's scheduler on a virtual clock, as on a slow CPU."""

from typing import ClassVar

from kvscope.plan.devices.dry import Dry


class Priced(Dry):
    """Passes take longer with more tokens, copies with more bytes, pieces and pageable memory."""

    platform: ClassVar[str] = "priced_platform:PricedPlatform"
    in_id: ClassVar[tuple[str, ...]] = ()
