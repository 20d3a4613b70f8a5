"""Devices as the planner sees them: settings, limits, resources. One device a file."""
