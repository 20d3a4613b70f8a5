"""Offload policies: what is kept where, and how it is moved. One policy a file."""
