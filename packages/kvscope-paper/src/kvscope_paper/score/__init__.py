"""Score of another simulator against vLLM's scheduler, step by step."""
