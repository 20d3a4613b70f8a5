"""Breakdown of request latency: the life of each request, in the terminal and on the page."""
