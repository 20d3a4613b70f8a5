"""Devices for the engine, one file per device; torch and vLLM are imported in methods only."""
