"""What a server of vLLM has room for on GPUs that are not here."""
