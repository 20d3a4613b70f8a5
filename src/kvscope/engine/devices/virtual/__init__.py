"""What devices without a worker share: a virtual clock, and what their costs must say."""
