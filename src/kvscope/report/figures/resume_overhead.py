"""What preemptions cost: by the paper's measure, net, and beside a cache with room enough."""

from kvscope.report.data import Run
from kvscope.report.figures.over_experiments import Panel, over_experiments
from kvscope.report.words import BEYOND_AMPLE, OVERHEAD_NET, OVERHEAD_PAPER, PREEMPTIONS


def preempts(run: Run) -> bool:
    """Whether it preempts, or may once it has run."""
    return not run.complete or run.number(PREEMPTIONS.metric).value > 0


FIGURE = over_experiments(
    "resume_overhead",
    "Resume overhead",
    "What preemptions cost in a repeat. The paper's measure counts the whole of every forward pass "
    "that resumes a request, and the copies to the host; the net one only what that pass took "
    "beyond the work that was due anyway. Makespan beyond ample: how much later the last token "
    "came than with the same requests on a cache that never overflows. Experiments that preempt, "
    "and those that continue their lines.",
    [
        Panel("Resume overhead", (OVERHEAD_PAPER, OVERHEAD_NET)),
        Panel("Makespan beyond ample", (BEYOND_AMPLE,)),
    ],
    wanted=preempts,
    lead=OVERHEAD_NET,
)
