# What does it amount to, and may it be believed?


rule analyse_experiment:
    input:
        "results/tables/{id}/collect.json",
    output:
        "results/tables/{id}/metrics.parquet",
        "results/tables/{id}/repeat_metrics.parquet",
        "results/tables/{id}/analyse.json",
    log:
        "results/tables/{id}/analyse.log",
    conda:
        "../envs/kvscope.yaml"
    resources:
        mem_mib=4096,
        runtime=10,
        expected_s=60,
    params:
        run="results/experiments/{id}",
        out=lambda wildcards, output: Path(output[0]).parent,
    shell:
        "kvscope analyse {params.run} --out {params.out} > {log} 2>&1"
