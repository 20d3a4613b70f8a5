"""A PBS for tests: queue, scheduler, states, limits and messages are real; jobs are processes here.

    cluster.py   what a test holds: start, stop, lose a node, preempt a job
    server.py    the server and scheduler, one process
    node.py      what runs a job's script on its first node, one process a job
    tasks.py     pbs_tmrsh and mpiexec: processes on a job's nodes
    command.py   qsub, qstat, qdel, qsig, qselect: each sends its command line to the server
    options.py   the command lines
    queues.py    queues, limits and nodes like those of ALCF's Polaris

Messages, exit codes and attributes are those of OpenPBS 23.06. Only the standard library is used,
and commands import little: one takes some 30 ms.
"""
