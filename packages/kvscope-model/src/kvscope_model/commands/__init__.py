"""Commands of kvscope-model: `calibrate` and `bytes`."""
