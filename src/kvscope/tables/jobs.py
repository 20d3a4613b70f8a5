"""Tables of jobs: copies that a KV connector orders, and that run beside the passes.

The package of a connector registers such a table under a name of its own
(`kvscope.tables.added.JobTable`).
"""

from kvscope.tables.column import F64, I32, I64, ROWS, TEXT, Table, fact, key, told, witnessed
from kvscope.tables.columns import REPEAT, REQUEST, SINCE, SOURCE
from kvscope.tables.memory import BEGAN, CLOCK, COPY_S, DIRECTION, ENDED, KIND

COLUMNS = (
    REPEAT,
    key("step", I32, "pass that it was ordered in"),
    key("job", I64, "number of the job, in the order in which jobs were ordered"),
    told("request_id", TEXT, REQUEST.meaning),
    told("direction", TEXT, DIRECTION.meaning, words=DIRECTION.words),
    fact("kind", TEXT, KIND.meaning),
    told("blocks", I32, "blocks of the KV cache that it reads or fills"),
    witnessed("bytes", I64, "bytes copied", "passes", "blocks"),
    BEGAN,
    ENDED,
    COPY_S,
    CLOCK,
    SOURCE,
    told("ordered_s", F64, "when the scheduler ordered it, " + SINCE, "jobs"),
    told("first_block", I32, "place in its request of the first block", "jobs"),
    witnessed(
        "loaded_blocks",
        I32,
        "of a store: those of its blocks that were loaded at least once",
        *("jobs", "token_ids"),
        null=ROWS,
    ),
    witnessed(
        "awaited_step",
        I32,
        "of a store: pass that gave its blocks away, and so waited for its end",
        "jobs",
        null=ROWS,
    ),
    told(
        "arrived_step",
        I32,
        "of a load: pass whose scheduling learned of its end",
        "jobs",
        null=ROWS,
    ),
)
"""The columns of a table of jobs. A store copies out of the KV cache, a load into it."""
JOBS = Table("jobs", "one copy beside the passes", COLUMNS)
"""A table without rows, for a run that has no table of jobs."""
