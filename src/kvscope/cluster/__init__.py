"""Studies on clusters: experiments become members of packs, and packs jobs of a batch system.

What packs are, and how they are planned, submitted and watched, is in the package `submitit_packs`
(packages/snakemake-executor-plugin-submitit), which knows nothing of kvscope. Here is what it is
given: the experiments of a study, and how each is run.
"""
