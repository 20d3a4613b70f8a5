"""KV connectors, which keep tokens of preempted requests on the host for overflow policies."""
