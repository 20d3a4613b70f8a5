"""Foundations of all rooms: errors, atomic files, the layout of results, plug-ins, processes."""
