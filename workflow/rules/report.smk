# What does a person look at?


rule report_study:
    input:
        f"results/studies/{STUDY}/manifest.json",
        expand(
            "results/tables/{id}/metrics.parquet",
            id=[i for i in EXPERIMENTS if i not in batches.batched(PLAN)],
        ),
        expand(
            f"results/studies/{STUDY}/batch-{{part}}-of-{PARTS}.done",
            part=range(PARTS),
        ),
    output:
        report(
            f"results/studies/{STUDY}/report.html",
            category="Studies",
            caption="../report/study.rst",
        ),
        f"results/studies/{STUDY}/metrics.parquet",
        f"results/studies/{STUDY}/experiments.csv",
        f"results/studies/{STUDY}/comparisons.parquet",
        f"results/studies/{STUDY}/comparisons.csv",
    log:
        f"results/studies/{STUDY}/report.log",
    localrule: True
    conda:
        "../envs/kvscope.yaml"
    resources:
        mem_mib=2048,
    params:
        study=STUDY,
    shell:
        "kvscope report {params.study} 2>&1 | tee {log}"
