"""Studies with their results as the report reads them, and what the terminal says of them."""

from kvscope.report.load import load
from kvscope.report.validity import summary

__all__ = ["load", "summary"]
