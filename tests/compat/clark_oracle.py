"""Clark et al.'s measurements in plain NumPy, over the whole maps that a model itself returns: read off their paper and
the description of their code, word by word and cell by cell. Slow, and held to nothing of ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tests.models.eager import eager_maps


def maps_of(lm: Any, ids: Sequence[int]) -> np.ndarray:
    """[layer, head, n, n], float64."""
    maps = eager_maps(lm.model, input_ids=torch.tensor([list(ids)]))
    return np.stack([one[0].double().numpy() for one in maps])


def pieces_of_words(lm: Any, words: Sequence[str]) -> tuple[list[int], list[list[int]]]:
    """Ids of [CLS] words [SEP], each word tokenised alone, and which of them each unit ([CLS] and [SEP] too) is."""
    ids, members = [lm.tokenizer.cls_token_id], [[0]]
    for word in words:
        own = lm.tokenizer(word, add_special_tokens=False)["input_ids"]
        members.append(list(range(len(ids), len(ids) + len(own))))
        ids += own
    return [*ids, lm.tokenizer.sep_token_id], [*members, [len(ids)]]


def word_map(pieces: np.ndarray, members: list[list[int]], mode: str) -> np.ndarray:
    columns = np.stack([pieces[:, own].sum(1) for own in members], 1)
    rows = []
    for own in members:
        if mode == "first":
            rows.append(columns[own[0]])
        elif mode == "mean":
            rows.append(columns[own].mean(0))
        else:
            top = columns[own].max(0)
            rows.append(top / top.sum())
    return np.stack(rows)


def guesses(words: np.ndarray, transposed: bool) -> list[int]:
    """Each word's head, from 1, by a map of words with [CLS] and [SEP]."""
    words = words.T.copy() if transposed else words.copy()
    np.fill_diagonal(words, 0)
    return [int(np.argmax(row)) + 1 for row in words[1:-1, 1:-1]]


def accuracies(
    sentences: Sequence[tuple[list[str], list[int], list[str]]], guess: Callable[[int], list[int]], quirks: bool
) -> dict[str, float]:
    """By relation and "all"; `sentences` are words, heads (0 the root, else from 1) and relations."""
    right, wrong = defaultdict(int), defaultdict(int)
    for number, (words, heads, relations) in enumerate(sentences):
        guessed = guess(number)
        for at, (relation, head) in enumerate(zip(relations, heads, strict=True)):
            hit = guessed[at] == head
            before_genitive = at + 1 < len(words) and words[at + 1] in ("'s", "s'")
            if quirks and relation == "poss" and guessed[at] < len(words) and before_genitive:
                hit = guessed[at + 1] == head
            for name in (relation, "all"):
                (right if hit else wrong)[name] += 1
    names = wrong if quirks else {**wrong, **right}
    return {name: right[name] / (right[name] + wrong[name]) for name in names}


def offset_guess(num_words: int, offset: int) -> list[int]:
    return [min(max(at + 1 + offset, 0), num_words) for at in range(num_words)]


def masses(tokens: list[str], maps: np.ndarray, two: bool) -> dict[str, np.ndarray]:
    """Of one text, [layer, head] each."""
    n, out = len(tokens), {}
    seps = [at for at, token in enumerate(tokens) if token == "[SEP]"]
    rest = [at for at in range(n) if at not in seps]
    for name, cells in {
        "self": [(q, q) for q in range(n)], "right": [(q, q + 1) for q in range(n - 1)],
        "left": [(q, q - 1) for q in range(1, n)], "sep": [(q, k) for q in range(n) for k in seps],
        "sep_sep": [(q, k) for q in seps for k in seps], "rest_sep": [(q, k) for q in rest for k in seps],
        "cls": [(q, k) for q in range(n) for k in range(n) if tokens[k] == "[CLS]"],
        "punct": [(q, k) for q in range(n) for k in range(n) if tokens[k] in (".", ",")],
    }.items():  # fmt: skip
        among = {"sep_sep": 2 if two else len(seps), "rest_sep": n - 2 if two else len(rest)}.get(name, n)
        out[name] = sum((maps[..., q, k] for q, k in cells), np.zeros(maps.shape[:2])) / among
    return out


def entropy(maps: np.ndarray, smoothed: bool) -> np.ndarray:
    """[layer, head, n]"""
    p = 0.9999 * maps + 0.0001 / maps.shape[-1] if smoothed else maps
    return -(p * np.log(np.where(p > 0, p, 1))).sum(-1)


def distances(maps: np.ndarray) -> np.ndarray:
    """Of one text, [heads, heads], by Kullback-Leibler divergences from the mean of two rows."""
    flat = maps.reshape(-1, *maps.shape[2:])
    flat = 0.999 * flat + 0.001 / maps.shape[-1]
    out = np.zeros((len(flat), len(flat)))
    for i, p in enumerate(flat):
        for j, q in enumerate(flat):
            m = (p + q) / 2
            out[i, j] = (p * np.log(p / m) + q * np.log(q / m)).sum() / 2
    return out
