"""Devices for the planner: settings, limits, resources. One file per device."""
