"""Coverage of a trace: one flush for each traced layer of each traced pass."""

from kvscope.api.oracles import oracle
from kvscope_kernels.collect.flushes import Flush
from kvscope_kernels.oracles.run_facts import RunFacts


class Coverage:
    """The traced layers that are still missing, as a bit mask a pass, and unexpected flushes."""

    def __init__(self, run: RunFacts) -> None:
        self.layers = run.traced_layers or []
        self.bit = {layer: 1 << place for place, layer in enumerate(self.layers)}
        self.missing = dict.fromkeys(run.passes, (1 << len(self.layers)) - 1)
        self.unexpected, self.first = 0, ""

    def add(self, flush: Flush) -> None:
        """Add a flush. Flushes of layers that were not traced are left to `layer_unknown`."""
        place, bit = (flush.repeat, flush.step), self.bit.get(flush.layer, 0)
        missing = self.missing.get(place, 0)
        if bit and not missing & bit:
            self.unexpected += 1
            why = "appears twice" if place in self.missing else "should not be traced"
            self.first = self.first or f"{flush.where} {why}"
        elif bit:
            self.missing[place] = missing - bit

    def violations(self) -> oracle.Violations:
        """One violation for each missing layer and each unexpected flush."""
        lost = [(place, bits) for place, bits in self.missing.items() if bits]
        words = self.first
        if lost:
            (repeat, step), bits = min(lost)
            layer = next(layer for layer in self.layers if bits & self.bit[layer])
            words = f"repeat {repeat}, step {step}, layer {layer} is missing"
        return oracle.Violations(self.unexpected + sum(bits.bit_count() for _, bits in lost), words)
