"""The run stage: measures one experiment and writes its records."""
