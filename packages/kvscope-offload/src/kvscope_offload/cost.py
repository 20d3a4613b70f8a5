"""Costs of a step: least-squares lines over measured times, or the datasheet of other hardware.

All times are seconds of one transformer block (layer). The lines are what the published system
(HybridServe, arXiv 2501.01792) regresses as well: time to load against time to rebuild.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvscope.api.models import Model
from kvscope_model.hardware.hardware import Hardware


@dataclass(frozen=True)
class Line:
    """seconds = fixed_s + slope_s * amount, and 0 for nothing; fitted by least squares."""

    slope_s: float
    fixed_s: float = 0.0

    @classmethod
    def fit(cls, amounts: Sequence[float], seconds: Sequence[float]) -> "Line":
        """The line of least squares through measured points; neither part is negative."""
        x, y = np.asarray(amounts, float), np.asarray(seconds, float)
        if len(set(amounts)) < 2:
            return cls(max(0.0, float(y.mean() / x.mean())))
        # Relative errors count: a small transfer matters as much as a large one.
        slope, fixed = np.polyfit(x, y, 1, w=1 / np.maximum(y, 1e-12))
        if fixed < 0:
            return cls(float((x / y).sum() / ((x / y) ** 2).sum()))
        return cls(max(0.0, float(slope)), float(fixed))

    def __call__(self, amount: float) -> float:
        """Seconds for an amount."""
        return self.fixed_s + self.slope_s * amount if amount else 0.0


@dataclass(frozen=True)
class Sizes:
    """Bytes of one layer: of a token's K and V, of its activation, and of the weights."""

    kv_bytes: int
    activation_bytes: int
    weight_bytes: int

    @classmethod
    def of(cls, model: Model) -> "Sizes":
        """The sizes of a model's layer."""
        width = model.number_bytes
        return cls(
            2 * model.kv_heads * model.head_size * width,
            model.hidden_size * width,
            layer_parameters(model) * width,
        )


def layer_parameters(model: Model) -> int:
    """Weights of one layer, exact."""
    two = model.model_copy(update={"layers": model.layers + 1})
    return two.parameters - model.parameters


@dataclass(frozen=True)
class CostModel:
    """Seconds of what one layer does, each a line over its amount.

    `link` over bytes from host to device; `rebuild` over tokens whose K and V are made of their
    activations; `recompute` over tokens that are computed again from their ids; `forward` over the
    newest tokens of a batch; `attend` over context tokens in decoding; `causal` over pairs of a
    prefix's token and one up to it, where a prefix is computed; `relay` over bytes that the host
    copies from pageable memory to a pinned buffer.
    """

    sizes: Sizes
    link: Line
    rebuild: Line
    recompute: Line
    forward: Line
    attend: Line
    causal: Line = Line(0.0)
    relay: Line = Line(0.0)

    @classmethod
    def of_rates(
        cls, model: Model, link_bytes_per_s: float, flops_per_s: float, memory_bytes_per_s: float
    ) -> "CostModel":
        """The roofline of three rates: each product at `flops_per_s`.

        K and V of a token: 4 h d_kv operations. A token of a forward pass: two operations a weight,
        and one read of all weights a mini-batch. Attention reads K and V once in decoding; of a
        pair of a prefix it takes 4 h operations.
        """
        sizes, weights = Sizes.of(model), layer_parameters(model)
        kv_width = model.kv_heads * model.head_size
        return cls(
            sizes,
            link=Line(1 / link_bytes_per_s),
            rebuild=Line(4 * model.hidden_size * kv_width / flops_per_s),
            recompute=Line(2 * weights / flops_per_s),
            forward=Line(2 * weights / flops_per_s, sizes.weight_bytes / memory_bytes_per_s),
            attend=Line(sizes.kv_bytes / memory_bytes_per_s),
            causal=Line(4 * model.hidden_size / flops_per_s),
        )

    @classmethod
    def of_hardware(cls, model: Model, hardware: Hardware) -> "CostModel":
        """Costs from a GPU's data file, with the rates that its kernels and copies reach."""
        rates = hardware.pinned_in_bytes_per_s, hardware.gemm_flops_per_s
        roofline = cls.of_rates(model, *rates, hardware.memory_bytes_per_s * hardware.read_share)
        weights_s = roofline.sizes.weight_bytes / hardware.weight_bytes_per_s
        return replace(
            roofline,
            link=replace(roofline.link, fixed_s=hardware.pinned_copy_s),
            forward=replace(roofline.forward, fixed_s=weights_s),
            causal=Line(4 * model.hidden_size / hardware.attention_flops_per_s),
            relay=Line(1 / hardware.pageable_in_bytes_per_s),
        )

    @property
    def rho(self) -> float:
        """Time to rebuild a token's K and V over the time to load them."""
        return self.rebuild.slope_s / (self.sizes.kv_bytes * self.link.slope_s)
