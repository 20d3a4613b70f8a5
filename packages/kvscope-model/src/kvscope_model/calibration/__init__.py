"""Fits the numbers of the cost model to times: published ones, or those of measured runs."""
