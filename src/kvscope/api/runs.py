"""The records of a run, or of one repeat of it, for analysis."""

from kvscope.analyse.planned import confirm_settings
from kvscope.analyse.records import read_records
from kvscope.analyse.run_view import RunView

__all__ = ["RunView", "confirm_settings", "read_records"]
