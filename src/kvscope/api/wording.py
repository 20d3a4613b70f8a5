"""Metrics, settings and numbers in the words of a study's page.

`wording` has `number_text`, `percent`, and `setting_words` of a key and its value.
"""

from kvscope.report import words as wording

__all__ = ["wording"]
