"""What all rooms stand on: errors, atomic files, the layout of results, plug-ins, processes."""
