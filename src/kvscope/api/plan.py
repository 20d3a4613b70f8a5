"""Plans on disk, without Hydra and pydantic where they are current.

`manifest` has `split_study`, `plan_if_changed`, `preview`, `read`, `experiment_path` and
`device_note`; `batches` divides the experiments of a manifest among processes, and names them.
"""

from kvscope.plan import batches, manifest

__all__ = ["batches", "manifest"]
