"""The records of a run, or of one repeat of it, for analysis."""

from kvscope.analyse.planned import confirm_settings
from kvscope.analyse.records import Records, read_records

__all__ = ["Records", "confirm_settings", "read_records"]
