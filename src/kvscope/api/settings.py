"""Settings: typed parts of a configuration, options that packages register, and their files.

An `Option` is a part of an experiment, whose `Conditions` it may read. `Label` is how a key is
headed and put into words, `impossible` the error for values that do not go together.

- `fields`: `Part`, the base class of groups of keys; types of keys, as `Count`, `Tokens`, `Gib` and
  `Real`; `GIB` is bytes
- `documents`: `load`, `load_mapping`, which refuse what is damaged, and `dump` of YAML
- `runschema`, files of JSON that are validated: `Record`, a group of keys that may have others,
  with the types `Real` and `Whole`; of run.json `TracingRecord` with its `ClockSampleRecord`
- `complaints`, sentences of what is wrong: `validation_message` of an error of pydantic,
  `suggestion` of a known word for one that is not
"""

from kvscope.plan import complaints, documents, fields
from kvscope.plan.fields import Label, impossible
from kvscope.plan.option import Option
from kvscope.plan.parts import Conditions
from kvscope.tables import runschema

__all__ = [
    "Conditions",
    "Label",
    "Option",
    "complaints",
    "documents",
    "fields",
    "impossible",
    "runschema",
]
