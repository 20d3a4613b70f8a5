"""Foundations of all other packages: errors, atomic files, layout of results, plug-ins,
processes."""
