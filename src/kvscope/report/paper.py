"""The paper: the study of KV caching whose measures kvscope repeats and extends.

Every page cites it, because metrics and findings say "the paper's measure". What it published, and
its claims, are in the package kvscope-paper.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A conference paper; authors in order, each as given and family name."""

    authors: tuple[tuple[str, str], ...]
    title: str
    conference: str
    year: int
    doi: str

    @property
    def citation(self) -> str:
        """Authors, title, conference and DOI in one line."""
        names = [f"{given} {family}" for given, family in self.authors]
        by = f"{', '.join(names[:-1])} and {names[-1]}"
        return f"{by}: {self.title}. {self.conference}, {self.year}. doi:{self.doi}"


PAPER = Paper(
    authors=(
        ("Jie", "Ye"),
        ("Jaime", "Cernuda"),
        ("Avinash", "Maurya"),
        ("Xian-He", "Sun"),
        ("Anthony", "Kougkas"),
        ("Bogdan", "Nicolae"),
    ),
    title="Characterizing the Behavior and Impact of KV Caching on Transformer Inferences under "
    "Concurrency",
    conference="39th IEEE International Parallel and Distributed Processing Symposium (IPDPS)",
    year=2025,
    doi="10.1109/IPDPS64566.2025.00108",
)
