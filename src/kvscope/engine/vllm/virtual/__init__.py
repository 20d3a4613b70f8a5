"""vLLM without a worker: its executor is a virtual clock, on which passes and copies take time."""
