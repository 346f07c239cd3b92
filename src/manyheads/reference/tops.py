"""Which key a row looks at most, from the whole map: whether it is a word, and whether it is one of the rarest words.

What: `tops` gives the share of words whose strongest key is a word (no token that the tokenizer added), and of those
the share whose strongest key is the text's rarest word, or one of its two rarest, with chance levels.
Why: so Voita et al. found the head that looks at rare words. Added tokens are left out, as rows and as answers.
Cost: one pass over the map. Of equal weights the first is the strongest.
Source: Voita et al. 2019 (rare words).
"""

import numpy as np
from jaxtyping import Bool, Float64, Int, Real, Shaped

Map = Float64[np.ndarray, "h n n"]
Pair = tuple[Float64[np.ndarray, " h"], Float64[np.ndarray, " h"]]  # numerator, denominator


def tops(
    weights: Map,
    visible: Bool[np.ndarray, "n n"],
    ids: Int[np.ndarray, " n"],
    word: Bool[np.ndarray, " n"],
    rarity: Real[np.ndarray, " n"],
) -> dict[str, Pair]:
    """Name -> (rows whose strongest key is of the kind, rows that count), with the chance levels.

    `.uniform`: any word that a row sees is as likely to be its strongest key. `.relabelled`: the words stand in another
    order, so that any of them may stand where the row looks.
    """
    strongest = weights.argmax(axis=2) if len(ids) else np.zeros(weights.shape[:2], int)
    num_words = visible[:, word].sum(axis=1)
    rows = word & (num_words > 0)
    out = {"word_top": _of(word[strongest] & rows, rows)}
    out["word_top.uniform"] = _of(rows * num_words / np.maximum(visible.sum(axis=1), 1), rows, len(weights))
    for name, kinds in (("rarest_top", 1), ("two_rarest_top", 2)):
        rare = rarest(ids, word, rarity, kinds)
        num_rare = visible[:, rare].sum(axis=1)
        rows = word & (num_rare > 0)
        counted = rows & word[strongest]
        out[name] = _of(counted & rare[strongest], counted)
        out[f"{name}.uniform"] = _of(rows * num_rare / np.maximum(num_words, 1), rows, len(weights))
        out[f"{name}.relabelled"] = _of(counted * rare.sum() / max(word.sum(), 1), counted)
    return out


def rarest(
    ids: Int[np.ndarray, " n"], word: Bool[np.ndarray, " n"], rarity: Real[np.ndarray, " n"], kinds: int
) -> Bool[np.ndarray, " n"]:
    """Every place of the text's rarest words: of so many different ones, and of those as rare as the last of them."""
    _, first_places = np.unique(ids[word], return_index=True)
    by_kind = np.sort(rarity[word][first_places])[-kinds:]
    return word & (rarity >= by_kind[0]) if len(by_kind) else word


def _of(values: Shaped[np.ndarray, "... n"], rows: Shaped[np.ndarray, "... n"], num_heads: int | None = None) -> Pair:
    """Sums over rows, and how many rows; one for each head, also where heads do not differ."""
    num, den = np.sum(values, axis=-1, dtype=np.float64), np.sum(rows, axis=-1, dtype=np.float64)
    shape = (num_heads or len(np.atleast_1d(num)),)
    return np.broadcast_to(num, shape).copy(), np.broadcast_to(den, shape).copy()
