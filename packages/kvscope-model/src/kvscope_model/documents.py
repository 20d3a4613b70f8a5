"""Generated tables of docs/MODEL.md."""

from kvscope.api.documents import markdown
from kvscope_model.hardware import hardware
from kvscope_model.oracles import KERNELS, TIMES

FITTED = "a100-40gb"  # hardware whose numbers are fitted


def fitted_numbers_table() -> str:
    """The fitted numbers of the A100-40GB, with their intervals."""
    rows = [
        (f"`{name}`", f"{one.value:.4g}", f"{one.low:.4g} to {one.high:.4g}")
        for name, one in hardware.read(FITTED).fitted()
    ]
    return markdown(("number", "fit", "95 % of the bootstrap"), rows)


def oracles_table() -> str:
    """The oracles of runs on the modeled device."""
    rows = [
        (f"`{oracle.name}`", " ".join(filter(None, (oracle.sentence, oracle.details))))
        for oracle in (TIMES, KERNELS)
    ]
    return markdown(("reason", "what must hold"), rows)
