# Runs of experiments, their tables on one timeline, and their metrics.
#
# Experiments that are compared are measured together, and modeled ones share a process: each batch
# is run, collected and analysed in one job. Their files are no outputs of the rule, because Snakemake
# would delete those of all experiments when one fails. The next call continues where this one ended,
# because `kvscope run` keeps finished runs.


rule run_experiments:
    input:
        lambda wildcards: stages.settings_of(
            wildcards, PLAN, OPTIONS, RESULTS, workflow.dag
        ),
    output:
        touch("results/studies/{study}/{kind}-{part}-of-{parts}.done"),
    log:
        "results/studies/{study}/{kind}-{part}-of-{parts}.log",
    conda:
        "../envs/kvscope.yaml"
    threads: lambda wildcards: stages.needs(wildcards, PLAN)["threads"]
    resources:
        mem_mib=lambda wildcards: stages.needs(wildcards, PLAN)["memory_mib"],
        gpu=lambda wildcards: stages.needs(wildcards, PLAN)["gpus"],
        exclusive=lambda wildcards: stages.needs(wildcards, PLAN)["exclusive"],
        engine=lambda wildcards: int(wildcards.kind == batches.MEASURED),
        # Minutes: twice what is expected, and five, after which a batch system may end the job.
        runtime=lambda wildcards: stages.needs(wildcards, PLAN)["walltime_s"] * 2 // 60
        + 5,
        # Seconds, by which packs on a cluster are planned.
        expected_s=lambda wildcards: stages.needs(wildcards, PLAN)["walltime_s"],
    params:
        compare=stages.compare_option(PLAN),
    shell:
        "kvscope run --multirun --tables {params.compare} --log {log} {input}"
