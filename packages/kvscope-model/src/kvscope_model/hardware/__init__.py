"""Hardware as data: one YAML file a GPU, each number with its source, and their typed reader."""
