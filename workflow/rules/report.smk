# The page of a study.


rule report_study:
    input:
        f"results/studies/{STUDY}/manifest.json",
        [
            f"results/studies/{STUDY}/{kind}-{part}-of-{count}.done"
            for kind, count in PARTS.items()
            for part in range(count)
        ],
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
        f"results/studies/{STUDY}/ro-crate-metadata.json",
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
        "{{ kvscope report {params.study} && kvscope crate {params.study}; }} 2>&1 | tee {log}"
