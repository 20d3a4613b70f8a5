"""The timeline of a run: clocks aligned, intervals merged, and a Perfetto trace of it."""
