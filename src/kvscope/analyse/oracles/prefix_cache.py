"""Oracles of the prefix cache: what requests find there was put there, and stays until evicted."""

from collections.abc import Iterator
from functools import cache
from hashlib import sha256

import numpy as np
import pandas as pd

from kvscope.analyse.oracles.run_tables import (
    OF_PASS,
    OF_REQUEST,
    TOLERANCE_S,
    RunTables,
    bad_rows,
    blocks_of,
    combine,
)
from kvscope.arraytypes import Bools, Int64s
from kvscope.oracle import Violations

CONTENT = ["repeat", "owner", "block_position", "cached_step"]
"""The key of what a block contains: one request's tokens up to a position, of one computation."""


def hits_differ(run: RunTables) -> Violations:
    """The tokens found by a request are those of its rows of `hits`, which are its first blocks.

    Only a request that is admitted or resumed finds any, and only in a run with a prefix cache.
    """
    rows, hits, size = run.batch, run.records.hits, run.records.block_size
    of = [*OF_REQUEST, "step"]
    own = (hits["owner"] == hits["request_id"]).astype(int)
    found = hits.assign(own=own).groupby(of)
    counts = found.agg(blocks=("block", "size"), own=("own", "sum"), last=("block_position", "max"))
    rows = rows.join(counts, on=of).fillna({"blocks": 0, "own": 0, "last": -1})
    rows["resumes"] = rows["admits"] & (rows["preempted_step"] >= 0)
    differ = rows["hit_tokens"] != rows["blocks"] * size
    differ |= rows["own_hit_tokens"] != rows["own"] * size
    differ |= rows["last"] + 1 != rows["blocks"]
    differ |= (rows["hit_tokens"] > 0) & ~(rows["admits"] & run.caches_prefixes)
    admitted = hits[of].merge(rows[[*of, "resumes"]], how="left")["resumes"]
    wrong = hits["resumed"].to_numpy() != admitted.to_numpy()
    return combine(
        bad_rows(
            rows,
            differ,
            lambda r: (
                f"{r['hit_tokens']} tokens found, {r['own_hit_tokens']} of its own; hits has "
                f"{r['blocks']:.0f} blocks, {r['own']:.0f} of its own"
            ),
        ),
        bad_rows(hits, wrong, lambda _: "hits: no request is admitted, or resumed as it says"),
        bad_rows(
            hits,
            hits["in_use"].to_numpy(bool) != run.sharing.in_use,
            lambda r: f"block {r['block']} {'' if r['in_use'] else 'not '}in use when it was found",
        ),
    )


def hit_unfounded(run: RunTables) -> Violations:
    """A block that is found was computed, has the same tokens, and was not evicted since."""
    hits = run.records.hits
    known = _known(run, hits)
    gone = hits[CONTENT].merge(_last_steps(run), how="left", on=CONTENT)["evicted_step"]
    late = (gone.to_numpy(float) <= hits["step"].to_numpy(float)) | (
        hits["cached_step"] > hits["step"]
    ).to_numpy(bool)
    return combine(
        bad_rows(hits, ~known, lambda r: f"{_block(r)}, which did not compute it then"),
        bad_rows(hits, late, lambda r: f"{_block(r)} was not in the prefix cache"),
        bad_rows(hits, _of_other_tokens(run), lambda r: f"{_block(r)} begins with other tokens"),
        _contents_overlap(run),
    )


def hit_missed(run: RunTables) -> Violations:
    """A request finds every block that the prefix cache has of its first tokens.

    Blocks of a prompt, and of outputs that the workload has, are known by their tokens; those of
    other outputs by the request that computed them itself. The last token is always computed.
    """
    size, contents = run.records.block_size, _contents(run)
    rows = run.batch[run.batch["admits"]].merge(
        run.records.requests[[*OF_REQUEST, "prompt_tokens"]], on=OF_REQUEST
    )
    rows["position"] = rows["hit_tokens"] // size
    due = (rows["position"] + 1) * size < rows["prompt_tokens"] + rows["sampled_before"]
    rows = rows[due].reset_index(drop=True)
    names = _Names(run)
    rows["name"] = names.of(rows["request_id"], rows["position"])
    contents = contents.merge(_last_steps(run), how="left", on=CONTENT)
    contents["name"] = names.of(contents["owner"], contents["block_position"])
    loads = run.loaded[[*OF_REQUEST, "step", "served_step"]].dropna()
    loads = loads.rename(columns={"step": "asked", "served_step": "step"})
    asked = rows[[*OF_REQUEST, "step"]].merge(loads, how="left", on=[*OF_REQUEST, "step"])["asked"]
    rows["step"] = asked.fillna(rows["step"])  # what is loaded was looked for when that began
    there = rows.reset_index()[["index", "repeat", "step", "name"]].merge(
        contents[["repeat", "name", "cached_step", "evicted_step"]], on=["repeat", "name"]
    )
    there = there[there["cached_step"] < there["step"]]
    there = there[~(there["evicted_step"] <= there["step"])]
    missed = rows.index.isin(there["index"])
    words = "block position {} is in the prefix cache, and was not found"
    return bad_rows(rows, missed, lambda r: words.format(r["position"]))


def eviction_wrong(run: RunTables) -> Violations:
    """A block is evicted once, when no request holds it, for a request of the pass.

    Or for one whose blocks begin to be loaded then.
    Its age and the times that it was found follow from the other tables.
    """
    rows = run.records.evictions
    found = run.records.hits.assign(found=1).groupby(CONTENT, as_index=False)["found"].sum()
    starts = run.steps.set_index(OF_PASS)["start_s"]
    rows = rows.merge(found, how="left", on=CONTENT).fillna({"found": 0})
    begin, cached = (
        starts.reindex(pd.MultiIndex.from_frame(rows[["repeat", column]])).to_numpy()
        for column in ("step", "cached_step")
    )
    old = ~(np.abs(rows["age_s"].to_numpy() - (begin - cached)) <= TOLERANCE_S)
    of = [*OF_REQUEST, "step"]
    there = pd.concat([run.batch[of], run.victims[of], run.loaded[of]])
    keys, known = (pd.MultiIndex.from_frame(frame[of]) for frame in (rows, there))
    return combine(
        bad_rows(rows, rows.duplicated(CONTENT), lambda r: f"{_block(r)} was evicted twice"),
        bad_rows(rows, ~_known(run, rows), lambda r: f"{_block(r)}, which did not compute it then"),
        bad_rows(rows, run.sharing.held, lambda r: f"{_block(r)} was evicted while it was in use"),
        bad_rows(rows, ~keys.isin(known), lambda r: f"{_block(r)} was evicted for no request"),
        bad_rows(
            rows,
            rows["hits"] != rows["found"],
            lambda r: f"{_block(r)}: {r['hits']} hits, found {r['found']:.0f} times",
        ),
        bad_rows(rows, old, lambda r: f"{_block(r)}: age_s is {r['age_s']}"),
    )


def cached_blocks_differ(run: RunTables) -> Violations:
    """Blocks in the prefix cache, and those in use beside them, fit into the KV cache.

    A cached block is evicted only where no other block is free.
    """
    contents, rows, size = _contents(run), run.records.evictions, run.records.block_size
    spans = contents.merge(_last_steps(run), how="left", on=CONTENT)
    spans = spans.rename(columns={"cached_step": "step", "evicted_step": "until"})
    stays = run.stays
    filling = blocks_of(stays["slot_tokens"], size) - stays["tokens"] // size
    held = run.sum_over_passes(spans, 1) + run.sum_over_passes(stays, filling)
    held += run.sum_over_passes(run.loading, run.loading["blocks"])
    there = run.loaded.dropna(subset=["arrived_step", "served_step"])  # these are cached already
    there = there.assign(step=there["arrived_step"], until=there["served_step"])
    held -= run.sum_over_passes(there, there["blocks"])
    total = run.steps["kv_blocks_total"]
    steps = run.steps.assign(held=held)
    evicts = steps[OF_PASS].merge(rows[OF_PASS].drop_duplicates(), how="left", indicator=True)
    alone = (evicts["_merge"] == "both").to_numpy() & (steps["preempted_requests"] == 0)
    wrong = (held > total) | (alone & (held < total))
    return bad_rows(
        steps,
        wrong,
        lambda r: f"{r['held']} of {r['kv_blocks_total']} blocks are cached or being filled",
    )


def tokens_not_conserved(run: RunTables) -> Violations:
    """scheduled + found + loaded = due + lost, of each request that was served.

    Its tokens that passes compute and keep, that it finds in the prefix cache and that are loaded
    from the host are those of its prompt and outputs but the last, and those that it lost when it
    was preempted.
    """
    rows = run.batch
    kept = rows["end_tokens"] - rows["context_tokens"]
    rows = rows.assign(there=kept + rows["context_tokens"].where(rows["admits"], 0))
    had = rows.groupby(OF_REQUEST)["there"].sum().rename("had")
    lost = run.victims.groupby(OF_REQUEST)["tokens"].sum().rename("lost")
    served = run.records.requests[~run.records.requests["aborted"].astype(bool)]
    served = served.join(had, on=OF_REQUEST).join(lost, on=OF_REQUEST)
    served = served.fillna({"had": 0, "lost": 0})
    served["due"] = served["prompt_tokens"] + served["output_tokens"] - 1 + served["lost"]
    return bad_rows(
        served,
        served["had"] != served["due"],
        lambda r: (
            f"{r['had']:.0f} tokens computed, found and loaded; {r['due']:.0f} were due and lost"
        ),
    )


def _block(row: object) -> str:
    found = pd.Series(row)
    at = f"position {found['block_position']} of request {found['owner']}"
    return f"block {found['block']}, {at} since step {found['cached_step']}"


def _contents(run: RunTables) -> pd.DataFrame:
    """A row (CONTENT) for each block that a pass filled with tokens, so that it was cached.

    Blocks that are loaded are cached when vLLM learns of it, in the pass or before.
    """
    rows, size = run.batch, run.records.block_size
    begin = rows["hit_tokens"].where(rows["admits"], rows["context_tokens"])
    first, end = (column.to_numpy(np.int64) // size for column in (begin, rows["end_tokens"]))
    count = np.maximum(end - first, 0)
    of: Int64s = np.repeat(np.arange(len(rows)), count)
    place = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
    served = run.loaded[[*OF_REQUEST, "served_step", "blocks", "arrived_step"]]
    served = served.dropna().rename(columns={"served_step": "step"})
    loads = rows[[*OF_REQUEST, "step"]].merge(served, how="left", on=[*OF_REQUEST, "step"])
    loaded, arrived = (loads[name].to_numpy(float)[of] for name in ("blocks", "arrived_step"))
    step = rows["step"].to_numpy()[of]
    cached_step = np.where(place < np.nan_to_num(loaded), arrived, step).astype(step.dtype)
    return pd.DataFrame(
        {
            "repeat": rows["repeat"].to_numpy()[of],
            "owner": rows["request_id"].to_numpy()[of],
            "block_position": (first[of] + place).astype(np.int32),
            "cached_step": cached_step,
        }
    )


def _known(run: RunTables, rows: pd.DataFrame) -> Bools:
    """Whether the content of each row was computed as it says."""
    found, known = (pd.MultiIndex.from_frame(frame[CONTENT]) for frame in (rows, _contents(run)))
    there: Bools = found.isin(known)
    return there


def _last_steps(run: RunTables) -> pd.DataFrame:
    """`evicted_step` of each content that was evicted."""
    rows = run.records.evictions.drop_duplicates(CONTENT)
    return rows[[*CONTENT, "step"]].rename(columns={"step": "evicted_step"})


def _contents_overlap(run: RunTables) -> Violations:
    """Two contents of one block at the same time, or one content in two blocks."""
    rows = pd.concat([run.records.hits, run.records.evictions])[
        [*CONTENT, "block"]
    ].drop_duplicates()
    if rows.empty:
        return combine()
    rows = rows.merge(_last_steps(run), how="left", on=CONTENT)
    rows = rows.sort_values(["repeat", "block", "cached_step"], ignore_index=True)
    of_block = rows.groupby(["repeat", "block"])
    before = of_block["evicted_step"].shift().fillna(np.inf)
    follows = of_block.cumcount() > 0
    return combine(
        bad_rows(rows, rows.duplicated(CONTENT), lambda r: f"{_block(r)} is another block, too"),
        bad_rows(
            rows,
            follows & (before > rows["cached_step"]),
            lambda r: f"{_block(r)} has other content before it is evicted",
        ),
    )


def known_tokens(run: RunTables) -> dict[str, Int64s]:
    """The tokens of each request that the workload has: its prompt, and its output if any."""
    rows = run.records.workload
    columns = (rows[name] for name in ("request_id", "prompt_token_ids", "output_token_ids"))
    return {
        str(name): np.asarray([*prompt, *(() if output is None else output)], np.int64)
        for name, prompt, output in zip(*columns, strict=True)
    }


def _of_other_tokens(run: RunTables) -> Bools:
    """Whether the tokens of the request and of the block's owner differ before the block's end."""
    hits, size, prompts = run.records.hits, run.records.block_size, known_tokens(run)

    @cache
    def same(one: str, other: str) -> int:
        """How many tokens two requests have in common, as far as both are known."""
        length = min(len(prompts[one]), len(prompts[other]))
        differ = np.flatnonzero(prompts[one][:length] != prompts[other][:length])
        return int(differ[0]) if len(differ) else np.iinfo(np.int64).max

    pairs = zip(hits["request_id"], hits["owner"], hits["block_position"], strict=True)
    found = [
        one != other and other in prompts and same(one, other) < (position + 1) * size
        for one, other, position in pairs
    ]
    return np.array(found, bool)


class _Names:
    """Names of the tokens of a request up to the end of a position; equal for equal tokens."""

    def __init__(self, run: RunTables) -> None:
        self._size = run.records.block_size
        self._known = {name: [*self._chain(tokens)] for name, tokens in known_tokens(run).items()}

    def _chain(self, tokens: Int64s) -> Iterator[bytes]:
        digest = b""
        for end in range(self._size, len(tokens) + 1, self._size):
            digest = sha256(digest + tokens[end - self._size : end].tobytes()).digest()
            yield digest

    def of(self, requests: pd.Series, positions: pd.Series) -> pd.Series:
        """The name of each; output tokens are known by their request alone."""
        names = [self._of(*one) for one in zip(requests, positions.tolist(), strict=True)]
        return pd.Series(names, requests.index, dtype=object)

    def _of(self, request: str, position: int) -> object:
        known = self._known[request]
        return known[position] if position < len(known) else (request, position)
