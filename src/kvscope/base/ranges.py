"""Names of the NVTX ranges that a run pushes and the collector reads.

They nest on the engine's thread: run > (warm-up | repeat) > forward pass > layer. The payload of
a repeat, forward pass or layer is its number.
"""

DOMAIN = "kvscope"
RUN = "run"
WARM_UP = "warm-up"
REPEAT = "repeat"
FORWARD_PASS = "forward pass"
LAYER = "layer"
