"""The cost of preemptions: by the paper's measure, net, and compared with an ample cache."""

from kvscope.report.data import Run
from kvscope.report.figures.over_experiments import Panel, over_experiments


def preempts(run: Run) -> bool:
    """Whether the experiment preempts, or may do so once it has run."""
    return not run.complete or run.number("preemptions").value > 0


FIGURE = over_experiments(
    "Resume overhead",
    "The cost of preemptions in a repeat. The paper's measure counts the whole duration of every "
    "forward pass that resumes a request, and the copies to the host as its clock read them: on a "
    "GPU until they are issued. The net measure counts only "
    "the time of that pass beyond the work due without the preemption. Makespan beyond ample: the "
    "makespan minus that of the same requests on a cache that never overflows. Only experiments "
    "that preempt are shown.",
    [
        Panel("Resume overhead", ("resume_overhead_as_published_s", "resume_overhead_net_s")),
        Panel("Makespan beyond ample", ("makespan_beyond_ample_s",)),
    ],
    wanted=preempts,
    lead="resume_overhead_net_s",
    order=100,
)
