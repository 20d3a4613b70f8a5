"""Sections of a study's page, and the study and runs that they show.

- `section`: a `Section`, which a package registers, is made of a `Report`
"""

from kvscope.report import section
from kvscope.report.data import ReportedRun, StudyData

__all__ = ["ReportedRun", "StudyData", "section"]
