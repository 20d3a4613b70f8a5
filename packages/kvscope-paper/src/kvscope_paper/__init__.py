"""The paper beside kvscope: its artifact as runs, its values and ours, and its claims."""
