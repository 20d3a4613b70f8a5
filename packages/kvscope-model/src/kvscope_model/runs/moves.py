"""Durations of a run's copies and rebuilds of K and V on given hardware.

Which they are is recorded in `transfers`, their seconds follow from the cost model.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvscope.api.runs import RunView
from kvscope.api.tables import copies as kinds
from kvscope_model.arraytypes import Floats, Int64s
from kvscope_model.hardware.cost import copies_in
from kvscope_model.hardware.overflow_cost import OverflowCost


class Seconds(NamedTuple):
    """Seconds of each row of `RunView.moves`, then of each pass; 0 where nothing was saved.

    Copies take `copied_s` on the device and `issued_s` until the host's calls return; `rebuilt_s`
    are for K and V of activations. What a pass saves is gathered in `gathered_s` and copied in
    `saved_s`.
    """

    copied_s: Floats
    issued_s: Floats
    rebuilt_s: Floats
    gathered_s: Floats
    saved_s: Floats


@dataclass(frozen=True)
class Moves:
    """Amounts of each row of `RunView.moves`: bytes, calls that copy, tokens rebuilt; of each pass:
    what it saved of activations, in bytes and calls.
    """

    directions: list[str]
    bytes: Int64s
    copies: Int64s
    rebuilt_tokens: Int64s
    saved_bytes: Int64s
    save_copies: Int64s

    @classmethod
    def recorded(cls, repeat: RunView, cost: OverflowCost) -> "Moves":
        """Copies of a modeled repeat on the hardware of `cost`: as many as took these seconds."""
        recorded = cls._without_copies(repeat)
        copied_s = repeat.moves["copy_s"].to_numpy(float)
        moves = zip(copied_s.tolist(), recorded.bytes.tolist(), recorded.directions, strict=True)
        for place, (seconds, moved, direction) in enumerate(moves):
            if moved:
                recorded.copies[place] = cost.copies_in(seconds, moved, direction)
        saves = zip(save_s_of(repeat).tolist(), recorded.saved_bytes.tolist(), strict=True)
        for place, (seconds, saved) in enumerate(saves):
            if saved:
                copies = copies_in(cost.hardware, seconds, saved, cost.memory, "out")
                recorded.save_copies[place] = copies
        return recorded

    @classmethod
    def assumed(cls, repeat: RunView, cost: OverflowCost) -> "Moves":
        """Assumed copies of a measured repeat, whose number is not recorded.

        Coalesced ones are in one stretch of the host's blocks; each request's tokens are saved in
        one.
        """
        moves = cls._without_copies(repeat)
        rebuilt = moves.rebuilt_tokens > 0
        block_bytes = np.where(rebuilt, cost.activation_block_bytes, cost.block_bytes)
        blocks = 1 if cost.coalesced else moves.bytes // block_bytes
        moves.copies[:] = blocks * np.where(rebuilt, 1, cost.pieces)
        saved = repeat.batch.loc[
            repeat.batch["saved_tokens"].astype(float) > 0, "step"
        ].value_counts()
        moves.save_copies[:] = saved.reindex(_steps(repeat), fill_value=0)
        return moves

    @classmethod
    def _without_copies(cls, repeat: RunView) -> "Moves":
        """Moves without copies; a row of activations rebuilds its request's uncached tokens."""
        rows, resumed = repeat.moves, repeat.preemptions[repeat.preemptions["event"] == "resume"]
        missed = resumed["tokens"] - resumed["hit_tokens"].astype(float).fillna(0)
        columns = resumed["step"], resumed["request_id"], missed
        tokens = {(step, name): count for step, name, count in zip(*columns, strict=True)}
        rebuilt = [
            tokens.get((step, name), 0) if kind == kinds.INPUTS else 0
            for step, name, kind in zip(rows["step"], rows["request_id"], rows["kind"], strict=True)
        ]
        return cls(
            rows["direction"].tolist(),
            rows["bytes"].to_numpy(np.int64),
            np.zeros(len(rows), np.int64),
            np.array(rebuilt, np.int64),
            _of_passes(repeat, "bytes").astype(np.int64),
            np.zeros(len(repeat.steps), np.int64),
        )

    def seconds(self, cost: OverflowCost) -> Seconds:
        """Seconds of all moves on the hardware of `cost`."""
        copied = np.zeros((len(self.bytes), 2))
        for place in np.flatnonzero(self.bytes):
            copies, moved = int(self.copies[place]), int(self.bytes[place])
            copied[place] = cost.copied_s(copies, moved, self.directions[place])
        rebuilt_s = np.array([cost.rebuild_s(n) for n in self.rebuilt_tokens.tolist()])
        tokens = self.saved_bytes // cost.model.activation_bytes_per_token
        saved_s = np.zeros(len(tokens))
        for place in np.flatnonzero(tokens):
            saved_s[place] = cost.save_s(int(tokens[place]), int(self.save_copies[place]))[0]
        return Seconds(
            copied[:, 0],
            # K and V are rebuilt as activations come: the calls return with the last of them.
            np.where(self.rebuilt_tokens > 0, copied[:, 0] + rebuilt_s, copied[:, 1]),
            rebuilt_s,
            np.array(cost.gather_s(1) * tokens),
            saved_s,
        )


def save_s_of(repeat: RunView) -> Floats:
    """Recorded seconds of what each pass saved, in the order of `step`; 0 where nothing was."""
    return _of_passes(repeat, "copy_s")


def _of_passes(repeat: RunView, column: str) -> Floats:
    """The sum of a column over what each pass saved, in the order of `step`."""
    saved, steps = repeat.saved, _steps(repeat)
    pass_index = np.searchsorted(steps, saved["step"])
    return np.bincount(pass_index, saved[column].to_numpy(np.float64), len(steps)).astype(
        np.float64
    )


def _steps(repeat: RunView) -> Int64s:
    steps: Int64s = np.sort(repeat.steps["step"].to_numpy(np.int64))
    return steps
