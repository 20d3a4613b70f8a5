"""Figures of runs of the offload engine, each declared as `FIGURE` in its module."""
