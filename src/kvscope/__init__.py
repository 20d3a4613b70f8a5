"""kvscope: how an LLM serving engine uses its KV cache under concurrency."""

__version__ = "0.1.0"
