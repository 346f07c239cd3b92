"""What their measurements share: their code's quirks, sentences as BERT was shown them, which word attends to which.

`QUIRKS`: where the published code does something else than its paper says, or than it seems to mean, each by name.

Their words are joined by single blanks before they are tokenised ("do n't"); `layout="raw"` keeps the text as it was
written, which moves some relations by several points. Attention to a word is the sum over its pieces; from a word,
that of its first piece: their code's default, though the paper says the mean. Source: section 4.1, `bpe_utils.py`.
"""

# device: what is read of a layer is moved to the host first

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.compat.inputs import BLOCK_CELLS
from manyheads.corpora import Document
from manyheads.errors import StatisticError, TextError
from manyheads.models import record
from manyheads.recording import Gold, LayerRecord, Words
from manyheads.recording.words import merge, numbered
from manyheads.spec import Layers

POSS, VANISHING, FLOAT16, SMOOTHING, SEPARATORS = "poss", "vanishing", "float16", "smoothing", "two separators"
QUIRKS = {
    POSS: "a word with the relation `poss` before 's or s' counts as right where the *next* word's guess is right, "
    "unless its own guess is the last word (an `and` and an `or` without parentheses)",
    VANISHING: "a relation that a predictor never gets wrong is missing from its scores",
    FLOAT16: "maps are rounded to float16 before words are merged, so that small weights tie and the first word wins",
    SMOOTHING: "entropies are of 0.9999 p + 0.0001 / n",
    SEPARATORS: "attention between [SEP]s is divided by 2 and that from others by n - 2, however many [SEP]s there are",
}
"""What each quirk is, in words."""

LAYOUTS = ("joined", "raw")
MODES = ("first", "mean", "max")
NOBODY = -1  # the guess of a word that has no token; 0 is the root, words count from 1
CHUNK = 32  # documents recorded together, and dropped


def chosen_quirks(quirks: bool | Collection[str], known: tuple[str, ...]) -> frozenset[str]:
    """The quirks of `known` that the argument names. Errors: StatisticError for names that are no quirks."""
    if isinstance(quirks, bool):
        return frozenset(known if quirks else ())
    names = {quirks} if isinstance(quirks, str) else set(quirks)
    if unknown := names - QUIRKS.keys():
        raise StatisticError(
            f"{quirks=}: {', '.join(sorted(map(repr, unknown)))} is no quirk. Give True, False, or some of "
            f"{', '.join(map(repr, known))}."
        )
    return frozenset(names.intersection(known))


class Sentence(NamedTuple):
    """A document laid out: its text, its words, what is known of them, and where they are in the text.

    Word `places[i]` is at `spans[i]`. Of words that share a stretch of the text (German "im"), it is the first's.
    """

    text: str
    words: tuple[str, ...]
    gold: Gold
    spans: tuple[tuple[int, int], ...]
    places: tuple[int, ...]


class Recorded(NamedTuple):
    """A sentence with the records of all layers; `text` is its number among theirs."""

    sentence: Sentence
    layers: Layers[LayerRecord]
    text: int
    words: Words


def word_attention(
    weights: Float[Tensor, "*h q k"], words_to_tokens: Sequence[Sequence[int]], mode: str = "first"
) -> Float[Tensor, "*h w w"]:
    """A map of pieces as a map of words; `words_to_tokens` lists the pieces of each word, every piece once.

    Columns of a word are summed. Its row is that of its first piece ("first", their default), the mean of its rows
    ("mean") or the largest in each column, scaled to sum to 1 ("max").
    Errors: StatisticError for another mode, ShapeError for pieces that do not fit.
    """
    numbers = torch.full((weights.shape[-1],), -1)
    for word, tokens in enumerate(words_to_tokens):
        numbers[list(tokens)] = word
    return _merged(weights, numbers, numbers, mode)


def most_attended(
    layer: LayerRecord, read: Recorded, mode: str = "first", half: bool = False
) -> tuple[Int[Tensor, "h w"], Int[Tensor, "h w"]]:
    """For each word the other word that it attends to most, and the one that attends to it most: numbers from 1.

    Special tokens are left out, a word never counts as its own, the first of equals wins. `half`: weights are rounded
    to float16, before words are merged and after. Cost: O(pieces^2 * d) time, a block of rows in memory.
    """
    units = read.words.units(read.text)
    of_words = [index for index, unit in enumerate(units) if unit.word >= 0]  # special tokens are none
    to_words, keys = numbered(units)
    num_heads, forward = layer.site.num_heads, []
    top, back = torch.full((num_heads, len(of_words)), -1.0), torch.zeros(num_heads, len(of_words), dtype=torch.long)
    step = max(1, BLOCK_CELLS // (num_heads * max(1, len(to_words))))
    for start in range(0, len(of_words), step):
        rows = torch.arange(start, min(start + step, len(of_words)))
        from_words, span = numbered([units[of_words[row]] for row in rows])
        weights = layer.weights(None, span, keys, read.text).cpu()
        block = _merged(weights.half().float() if half else weights, from_words, to_words, mode)
        block = (block.half().float() if half else block)[..., of_words]
        # A word never counts as its own, although most heads give it some weight.
        block[:, torch.arange(len(rows)), rows] = 0
        forward.append(block.argmax(-1))
        # Of the rows of this block, against the best of all blocks before: the first of equals stays.
        best, where = block.max(-2)
        back = torch.where(best > top, where + start, back)
        top = torch.maximum(best, top)
    place = torch.tensor([read.sentence.places[units[index].word] for index in of_words], dtype=torch.long)
    guesses = torch.full((2, num_heads, len(read.sentence.words)), NOBODY)
    for guess, most in zip(guesses, (torch.cat(forward, -1) if forward else back, back), strict=True):
        guess[:, place] = place[most] + 1
    return guesses[0], guesses[1]


def _merged(weights: Tensor, from_words: Tensor, to_words: Tensor, mode: str) -> Tensor:
    if mode not in MODES:
        raise StatisticError(f"{mode=} is not how rows of a word are merged: use one of {', '.join(MODES)}.")
    rows = merge(weights, from_words, to_words, mode)
    return rows / rows.sum(-1, keepdim=True) if mode == "max" else rows


def laid_out(document: Document, layout: str, num_words: int | None = None) -> Sentence:
    """The document's text, its first `num_words` words (None: all), joined by blanks or as it was written."""
    if layout not in LAYOUTS:
        raise TextError(f"{layout=} is not how a sentence is laid out: use one of {', '.join(LAYOUTS)}.")
    gold = document.gold
    assert gold is not None
    gold_words = gold.words[:num_words]
    words = tuple(document.text[word.begin : word.end] for word in gold_words)
    # Of words that share a stretch of the text only the first is laid out.
    first = [i for i, word in enumerate(gold_words) if not i or word.begin >= gold_words[i - 1].end]
    if layout == "raw":
        text = document.text if num_words is None else document.text[: gold_words[-1].end if gold_words else 0]
        spans = tuple((gold_words[i].begin, gold_words[i].end) for i in first)
        return Sentence(text, words, gold, spans, tuple(first))
    ends = list(accumulate(len(words[i]) + 1 for i in first))
    spans = tuple((end - len(words[i]) - 1, end - 1) for i, end in zip(first, ends, strict=True))
    return Sentence(" ".join(words[i] for i in first), words, gold, spans, tuple(first))


def num_tokens(lm: Any, text: str) -> int:
    return len(lm.tokenizer(text, truncation=False, verbose=False)["input_ids"])


def most_tokens(lm: Any, max_tokens: int | None) -> int | None:
    """The smaller of `max_tokens` and the model's positions; None where there is no limit."""
    limits = [limit for limit in (max_tokens, lm.max_positions) if limit is not None]
    return min(limits, default=None)


def recorded(lm: Any, sentences: Iterable[Sentence]) -> Iterator[Recorded]:
    """Each sentence with its records. Cost: a forward pass each; `CHUNK` of them are in memory."""
    remaining = iter(sentences)
    while chunk := list(islice(remaining, CHUNK)):
        recording = record(lm, [sentence.text for sentence in chunk], long="whole")
        words = Words.of(recording.tokens, [sentence.spans for sentence in chunk])
        layers = recording.layers
        for text, sentence in enumerate(chunk):
            yield Recorded(sentence, layers, text, words)
