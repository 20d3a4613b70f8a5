"""Code that is plugged into vLLM through its public extension points."""
