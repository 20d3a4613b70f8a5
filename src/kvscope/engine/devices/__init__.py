"""Devices for the engine, one file per device; vLLM is imported inside of methods only."""
