"""The table `offload_jobs`: what vLLM's offloading stores and loads."""

from kvscope.api.tables import added

JOBS = added.JobTable.named("offload_jobs", "one job of vLLM's offloading")
