"""Sections of a study's page, and the study and runs that they show."""

from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.sections import Section

__all__ = ["ReportedRun", "Section", "StudyData"]
