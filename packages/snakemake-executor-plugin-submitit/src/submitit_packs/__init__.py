"""Many short commands, each with its own GPUs, packed into few jobs of a batch system.

`planner` makes packs of members, `controller` submits them with submitit and sees them to their
ends, `pilot` runs a pack's members inside its allocation with Parsl, and `directory` is what the
three agree on: files on a shared file system, the only truth between them.
"""
