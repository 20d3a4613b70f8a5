"""A study to start from: `kvscope new NAME`."""

import re
from pathlib import Path

from kvscope.base.errors import BadInput
from kvscope.base.files import write_text
from kvscope.base.layout import AD_HOC
from kvscope.plan import layers, schema

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,59}")

STUDY = f"""\
{schema.MODELINE}
#
# Its experiments:     kvscope plan study=NAME
# What a key means:    README.md in the directory config of `kvscope shipped`

title: "NAME" # one line for people
description: >-
  What the study asks.

grids:
  # A grid has an experiment for each combination of its product and linked values.
  - name: room # appears in messages
    set: # the same for every experiment
      model: tiny-llama
      workload: fixed
      workload.num_requests: 8
      workload.prompt_tokens: 128
      workload.output_tokens: 64
      repeats: {{min: 5, until: 0.05, budget_s: 120}}
    product: # an experiment takes one value of each list
      cache.blocks: [64, 32]
      batching: [mixed, chunked]
    # linked: # an experiment takes all values of one row
    #   - {{overflow: recompute}}
    #   - {{overflow: swap, overflow.host_gib: 0.25}}
    # exclude: # experiments that match all values of a row are left out
    #   - {{cache.blocks: 32, batching: chunked}}
"""


def create_study(name: str, config_dir: Path) -> Path:
    """Write a study that plans as it is, with its schema for editors; give its path.

    BadInput if the name is taken in any layer or would make no good file name, CannotWrite if the
    file cannot be written.
    """
    if not NAME.fullmatch(name) or name == AD_HOC:
        raise BadInput(
            f"a study cannot be called {name!r}; take a name of letters, digits, '-' and '_' that "
            f"begins with a letter, has at most 60 of them and is not {AD_HOC!r}"
        )
    taken = layers.options(config_dir, "study").get(name)
    if taken:
        raise BadInput(f"there is a study {name!r} already: {taken}; edit it or take another name")
    path = config_dir / "study" / f"{name}.yaml"
    schema.write_for_editors(config_dir)
    write_text(path, STUDY.replace("NAME", name))
    return path
