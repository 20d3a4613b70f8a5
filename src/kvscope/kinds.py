"""The kinds of KV events and of the kernels that write them: their codes and their names."""

K_READ, V_READ, K_WRITE, V_WRITE = range(4)
KINDS = ("k_read", "v_read", "k_write", "v_write")  # by code

WRITE, ATTENTION = "write", "attention"  # kernels
