"""The words that columns of tables hold.

`copies` has directions and kinds of transfers, `passes` the phases of forward passes and requests,
`time_sources` where times come from, and what is to be said of those that were not measured.
"""

from kvscope import copies, passes, time_sources

__all__ = ["copies", "passes", "time_sources"]
