"""How much each kind of token (each vocabulary entry) receives from each head, beside its even share.

A class of tokens is mostly one or two of its kinds: four marks in five are a comma or a full stop. A head that favours
one such kind, as some random head always does, has a high mass on the whole class. Whether the *class* is favoured
shows only when each kind counts once: `favour` ranks kinds inside the class against kinds outside it.

Sums over texts, apart for the two halves. Memory: two numbers a kind seen and head while texts are read (`KindTally`),
four in the end. How it comes to be: `kindcounts`.
Source of the rank statistic: Mann and Whitney 1947, as the share of pairs (the area under the ROC curve).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy import ndarray

MIN_EVEN = 3.0
"""A kind counts from an even share of three rows' whole attention on: below it, its share is one place's luck."""

MIN_KINDS = 6
"""Kinds inside the class, and outside it, from which ranks say anything: 6 against 6 can reach p = 0.001."""


@dataclass(frozen=True, eq=False)
class TokenKinds:
    """`mass` that each kind received and `even`, what it would have if every row spread its weight evenly."""

    ids: Int64[ndarray, "kind"]
    mark: Bool[ndarray, "kind"]
    mass: Float64[ndarray, "half head kind"]
    even: Float64[ndarray, "half head kind"]

    def favour(self, half: int) -> Float64[ndarray, "head"]:
        """The share of pairs (a mark, a word) of which the mark is read more for its even share; 0.5 is no favour.

        NaN where there are too few kinds of either.
        """
        out = np.full(self.mass.shape[1], np.nan)
        for head, (mass, even) in enumerate(zip(self.mass[half], self.even[half], strict=True)):
            known = even >= MIN_EVEN
            mark, lift = self.mark[known], mass[known] / even[known]
            marks, words = lift[mark], np.sort(lift[~mark])
            if min(len(marks), len(words)) >= MIN_KINDS:
                below, upto = (np.searchsorted(words, marks, side).mean() for side in ("left", "right"))
                out[head] = (below + upto) / 2 / len(words)  # ties count half
        return out
