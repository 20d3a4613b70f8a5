"""The interface for packages that extend kvscope: each module below is a face for one subject.

A face re-exports names of kvscope's own modules, and importing it costs what these cost: no face
for planning or for reading results imports torch or vLLM. What a face lists in `__all__` keeps its
meaning within a version; everything else in kvscope may change at any time.

`VERSION` counts up when a name is removed or changes its meaning, which CHANGELOG.md says. Names
are added without that. docs/EXTENDING.md lists all of them.
"""

VERSION = 1
