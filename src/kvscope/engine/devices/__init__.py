"""Devices as an engine needs them. One device a file; none imports vLLM before it must."""
