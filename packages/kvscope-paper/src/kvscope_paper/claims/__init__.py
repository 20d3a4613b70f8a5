"""The claims of the paper, and what decides each by values."""
