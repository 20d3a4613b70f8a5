"""The table of fitted numbers of docs/MODEL.md, which `python -m kvscope.docs` generates."""

FITTED = "a100-40gb"  # hardware whose numbers are fitted


def fitted_numbers_table() -> str:
    """The fitted numbers of the A100-40GB, with their intervals."""
    from kvscope.docs import markdown
    from kvscope.plan.hardware import hardware

    rows = [
        (f"`{name}`", f"{value:.4g}", f"{low:.4g} to {high:.4g}")
        for name, value, low, high in hardware.read(FITTED).fitted()
    ]
    return markdown(("number", "fit", "95 % of the bootstrap"), rows)
