"""Claims on the measured models."""

from kvscope_paper.claims.batching import LLAMA, OPT, SHORT, YARN
from kvscope_paper.claims.judging import Finding, by_count
from kvscope_paper.claims.values import Values

KEYS = ("hidden_size", "layers", "attention_heads", "kv_heads", "max_position_embeddings")
TABLE_1 = {
    YARN: (4096, 32, 32, 32, 64 * 1024),
    LLAMA: (4096, 32, 32, 8, 128 * 1024),
    OPT: (5120, 40, 40, 40, 2 * 1024),
}


def table_1(values: Values) -> Finding | None:
    """Finding on whether the models of this study are those of Table I."""
    runs_of = {model: values.runs("3c", model__name=model) for model in TABLE_1}
    models = {model: runs[0].settings["model"] for model, runs in runs_of.items() if runs}
    same = {
        name: tuple(sizes[key] for key in KEYS) == TABLE_1[name] for name, sizes in models.items()
    }
    names = ", ".join(SHORT[name] for name in same)
    return by_count([*same.values()], f"So it is with {{}} models of this study: {names}.")
