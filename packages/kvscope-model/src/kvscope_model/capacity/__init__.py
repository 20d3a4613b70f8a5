"""The capacity of a vLLM server on GPUs that are not present."""
