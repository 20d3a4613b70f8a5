"""Metrics, settings and numbers in the words of a study's page.

- `wording`: `number_text`, `percent`, `interval_words` of a ratio, `NBSP`
- `traits`, what sets experiments apart: `flat` settings, the `varied_settings` of several; `traits`
  of those, each option one value, and their `names`; `setting_words` of a key and its value,
  `value_words`
"""

from kvscope.plan import traits
from kvscope.report import words as wording

__all__ = ["traits", "wording"]
