# Modeled experiments share a process: each is run, collected and analysed there.
#
# Their files are no outputs of the rule: Snakemake would delete those of all when one fails. The
# next call goes on where this one ended, because `kvscope run` keeps what is finished.


rule run_batch:
    input:
        lambda wildcards: expand(
            "results/experiments/{id}/experiment.yaml",
            id=batches.batch(PLAN, int(wildcards.part), int(wildcards.parts)),
        ),
    output:
        touch("results/studies/{study}/batch-{part}-of-{parts}.done"),
    log:
        "results/studies/{study}/batch-{part}-of-{parts}.log",
    conda:
        "../envs/kvscope.yaml"
    resources:
        mem_mib=4096,
        runtime=lambda wildcards: batches.walltime_s(
            PLAN, int(wildcards.part), int(wildcards.parts)
        )
        * 2
        // 60
        + 5,
        expected_s=lambda wildcards: batches.walltime_s(
            PLAN, int(wildcards.part), int(wildcards.parts)
        ),
    shell:
        "kvscope run --multirun --tables {input} 2>&1 | tee {log}"
