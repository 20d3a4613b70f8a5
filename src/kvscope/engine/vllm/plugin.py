"""vLLM's plugin entry point: registers what kvscope adds, in every process that needs it."""


def register() -> None:
    """Register kvscope's weight loader; safe to call more than once."""
    # Imported here because vLLM calls this while it is being imported itself.
    from kvscope.engine.vllm import weights  # noqa: F401  (the import registers the loader)
