"""The KV events of a run: its file, read, as rows of tables on the run's clock."""
