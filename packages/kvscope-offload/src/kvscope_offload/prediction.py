"""Predictions of the cost model for a batch, for run.json."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kvscope_offload.engine import Engine
from kvscope_offload.generation import Generation
from kvscope_offload.policies.hybrid import Hybrid
from kvscope_offload.split import Split, step_s
from kvscope_offload.timeline import Interval, one_step

SHARES = 21  # of activations, from none to all, of which run.json has the predicted step
TIMELINE_STEP = 2  # the pass whose timeline run.json has: one of decoding, warm …
TIMELINE_LAYERS = 4  # … and so many layers of it


@dataclass
class Prediction:
    """Prediction for the warm-up's first batch, and its timeline, for run.json."""

    engine: Engine
    generation: Generation | None = None
    intervals: list[Interval] = field(default_factory=list)

    @property
    def facts(self) -> dict[str, Any]:
        """The split, the cost model, a decoding pass by the closed form and simulated."""
        if self.generation is None:
            return {}
        cost, layers, lengths = self.engine.cost, self.engine.model.layers, self.generation.lengths
        again = self.engine.lay_out(lengths)
        demand = again.demand()
        simulated = self.engine.simulated(lengths)
        shares = [i / (SHARES - 1) for i in range(SHARES)]
        return {
            "requests": len(lengths),
            "split": asdict(again.split),
            "cost": asdict(cost),
            "rho": cost.rho,
            "closed_form_step_s": layers * step_s(cost, demand, again.split),
            "simulated_step_s": simulated.step_s if len(simulated.ends_s) > 3 else None,
            "best_activation_share": self._hybrid_share(again),
            "predicted": [
                [share, layers * step_s(cost, demand, Split(activation=share))] for share in shares
            ],
            "timeline": {
                "measured": one_step(self.intervals, TIMELINE_STEP, TIMELINE_LAYERS),
                "simulated": one_step(simulated.intervals, TIMELINE_STEP, TIMELINE_LAYERS),
            },
        }

    def _hybrid_share(self, generation: Generation) -> float:
        """Share that `hybrid` would keep as activations in the same conditions."""
        keys = generation.policy.model_dump(include=set(Hybrid.model_fields))
        policy = Hybrid.model_validate(keys | {"name": "hybrid", "share": None})
        return replace(generation, policy=policy).split.activation
