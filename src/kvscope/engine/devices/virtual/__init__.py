"""vLLM without a worker, on a virtual clock: passes and copies take what a device's costs say."""
