"""Settings: typed parts of a configuration, and options that packages register.

An `Option` is a `Part` of an experiment, whose `Conditions` it may read. `Label` is how a key is
headed and put into words, `impossible` the error for values that do not go together. `fields` are
types of keys, as `Count`, `Tokens`, `Gib` and `Real`; `GIB` is bytes.
"""

from kvscope.plan import fields
from kvscope.plan.fields import Label, impossible
from kvscope.plan.option import Option
from kvscope.plan.parts import Conditions

__all__ = ["Conditions", "Label", "Option", "fields", "impossible"]
