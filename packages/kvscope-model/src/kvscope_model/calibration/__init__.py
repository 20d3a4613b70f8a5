"""Fit of the cost model's numbers to published times, or to those of measured runs."""
