# What happened while one experiment ran?
#
# run.done is the rule's only output: Snakemake deletes the outputs of a failed job, and a failed
# run's records, log and reason are to stay. `kvscope run` writes it, with the SHA-256 of run.json:
# it changes when there is a new measurement, also one made by hand. A finished run stays as it is.


rule run_experiment:
    input:
        lambda wildcards: stages.settings_of(
            wildcards.id, OPTIONS, RESULTS, workflow.dag
        ),
    output:
        "results/experiments/{id}/run.done",
    log:
        "results/experiments/{id}/run.log",
    conda:
        "../envs/kvscope.yaml"
    threads: lambda wildcards: EXPERIMENTS[wildcards.id]["threads"]
    resources:
        mem_mib=lambda wildcards: EXPERIMENTS[wildcards.id]["memory_mib"],
        gpu=lambda wildcards: EXPERIMENTS[wildcards.id]["gpus"],
        exclusive=lambda wildcards: EXPERIMENTS[wildcards.id]["exclusive"],
        # Minutes: twice what is expected, and five, after which a batch system may end the job.
        runtime=lambda wildcards: EXPERIMENTS[wildcards.id]["walltime_s"] * 2 // 60 + 5,
        engine=1,
        # Seconds, by which packs on a cluster are planned.
        expected_s=lambda wildcards: EXPERIMENTS[wildcards.id]["walltime_s"],
    params:
        out=lambda wildcards, output: Path(output[0]).parent,
    shell:
        "kvscope run {input} --out {params.out} 2>&1 | tee {log}"
