"""The device `modeled`: an executor without a worker, on a virtual clock."""
