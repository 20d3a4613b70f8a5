"""Settings: typed parts of a configuration, options that packages register, and files of YAML.

An `Option` is a `Part` of an experiment, whose `Conditions` it may read. `Label` is how a key is
headed and put into words, `impossible` the error for values that do not go together.

- `fields`: types of keys, as `Count`, `Tokens`, `Gib` and `Real`; `GIB` is bytes
- `documents`: `load`, `load_mapping`, which refuse what is damaged, and `dump` of YAML
"""

from kvscope.plan import documents, fields
from kvscope.plan.fields import Label, Part, impossible
from kvscope.plan.option import Option
from kvscope.plan.parts import Conditions

__all__ = ["Conditions", "Label", "Option", "Part", "documents", "fields", "impossible"]
