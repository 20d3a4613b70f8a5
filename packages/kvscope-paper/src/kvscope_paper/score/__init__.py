"""How far another simulator follows vLLM's scheduler, step by step."""
