"""Which layers of each pass that was to be traced have come, and which came too often."""

from kvscope.collect.kv.flushes import Flush
from kvscope.collect.oracles.run_facts import RunFacts
from kvscope.oracle import Violations


class Coverage:
    """Which layers of each pass that was to be traced have come."""

    def __init__(self, run: RunFacts) -> None:
        self.layers = run.traced_layers or []
        self.bit = {layer: 1 << place for place, layer in enumerate(self.layers)}
        self.missing = dict.fromkeys(run.passes, (1 << len(self.layers)) - 1)
        self.strange, self.first = 0, ""

    def add(self, flush: Flush) -> None:
        """Take in a flush; one of a layer that was not traced is a case of `layer_unknown`."""
        place, bit = (flush.repeat, flush.step), self.bit.get(flush.layer, 0)
        missing = self.missing.get(place, 0)
        if bit and not missing & bit:
            self.strange += 1
            why = "comes twice" if place in self.missing else "was not to be traced"
            self.first = self.first or f"{flush.where} {why}"
        elif bit:
            self.missing[place] = missing - bit

    def violations(self) -> Violations:
        """LayerTimes that have not come, and those that came too often."""
        lost = [(place, bits) for place, bits in self.missing.items() if bits]
        words = self.first
        if lost:
            (repeat, step), bits = min(lost)
            layer = next(layer for layer in self.layers if bits & self.bit[layer])
            words = f"repeat {repeat}, step {step}, layer {layer} is missing"
        return Violations(self.strange + sum(bits.bit_count() for _, bits in lost), words)
