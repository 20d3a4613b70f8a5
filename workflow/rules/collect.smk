# What is the one timeline of all that was recorded?


rule collect_tables:
    input:
        "results/experiments/{id}/run.done",
    output:
        "results/tables/{id}/collect.json",
        "results/tables/{id}/timeline.parquet",
        "results/tables/{id}/trace.perfetto-trace",
    log:
        "results/tables/{id}/collect.log",
    conda:
        "../envs/kvscope.yaml"
    resources:
        mem_mib=2048,
        runtime=10,
        expected_s=60,
    params:
        run=lambda wildcards, input: Path(input[0]).parent,
        out=lambda wildcards, output: Path(output[0]).parent,
    shell:
        "kvscope collect {params.run} --out {params.out} --perfetto 2>&1 | tee {log}"
