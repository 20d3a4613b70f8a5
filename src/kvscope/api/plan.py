"""Plans on disk, without Hydra and pydantic where they are current.

- `manifest`: `split_study` of a command line, `plan_if_changed` and `preview` of its plan, `read`,
  `experiment_path`, `device_note`
- `batches`, the experiments that one process takes: `parts` of a manifest, `batch`, its `needs` and
  `name`, `of_name`; `ends` by a log; `MODELED`, a kind
"""

from kvscope.plan import batches, manifest

__all__ = ["batches", "manifest"]
