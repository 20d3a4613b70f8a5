"""Whether an installed package traces KV events: at most one does (`plan.tracing`)."""

from kvscope.base import plugins

GROUP = "kvscope.tracer"
PACKAGE = "kvscope-kernels"  # entry points of such packages
INSTRUMENTED = "instrumented"  # engine.attention with the kernels of such a package


def is_installed() -> bool:
    """Whether a package that traces is installed."""
    return bool(plugins.names(GROUP))
