"""The only package that imports vLLM: uses of its classes and functions, and of its versions.

Other modules of the engine are imported here; of them only devices import this room, so policies,
kernels and recordings know no vLLM. What differs between its versions stands in `versions`.
"""
