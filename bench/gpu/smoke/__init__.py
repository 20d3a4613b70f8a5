"""The steps of bench/gpu/smoke.sh: what kvscope does on a GPU, in less than fifteen minutes.

`python -m smoke.steps` imports once, and forks a process for each step; `python -m smoke.report`
makes the results of what they have stored.
"""
