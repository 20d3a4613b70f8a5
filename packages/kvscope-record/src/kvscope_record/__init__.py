"""Records what the KV cache of a server does that someone else runs: `vllm serve`, `LLM(...)`."""
