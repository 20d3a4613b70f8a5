"""submitit on PBS: `submitit.AutoExecutor(cluster="pbs")`, and PBS's commands as functions."""
