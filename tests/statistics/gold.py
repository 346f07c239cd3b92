"""What a head's words look at, worked out from the model's own eager maps in plain loops: for syntax and coreference.

Nothing here is the library's but the containers that people's annotation comes in (`Gold`). Where two words get the
same but for rounding, either may be called the strongest: every count has a lowest and a highest value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray

from manyheads.inputs import read
from manyheads.measurement import by_model, sums_of
from manyheads.statistics import Statistic
from manyheads.texts import ROOT, Document, Gold, GoldWord, Sinks
from tests.models.eager import eager_maps, spans
from tests.statistics.facts import value_norms_of


class Text(NamedTuple):
    text: str
    gold: Gold | None


def annotated(line: str, blank: str = " ", **more: Any) -> Text:
    """ "The/DET/2/det dog/NOUN/0/root": forms, parts of speech, heads from 1, relations. "~" for no blank before."""
    text, words = "", []
    for each in line.split():
        form, pos, head, relation = each.rsplit("/", 3)
        text += "" if form.startswith("~") or not text else blank
        form = form.removeprefix("~")
        words.append(GoldWord(len(text), len(text) + len(form), pos, int(head) - 1, relation))
        text += form
    return Text(text, Gold(tuple(words), **more))


def sentences(path: Path) -> Iterator[list[tuple[str, list[list[str]], bool]]]:
    """A file's documents: of each sentence its text, its words' columns, and whether their forms follow in it."""
    document: list[Any] = []
    text, rows = "", []
    for line in [*path.read_text(encoding="utf-8").split("\n"), ""]:
        if line.startswith("# newdoc") and document:
            yield document
            document = []
        if line.startswith("# text = "):
            text = line.removeprefix("# text = ")
        elif not line and rows:
            document.append((text, rows))
            text, rows = "", []
        elif line[:1].isdigit() and line.split("\t")[0].isdigit():
            rows.append(line.split("\t"))
    yield document


def gold_words(text: str, rows: Sequence[Sequence[str]], begin: int = 0, first: int = 0) -> list[GoldWord]:
    """Each form where it comes next in the text; none at all where one does not come."""
    out, at = [], 0
    for row in rows:
        at = text.find(row[1], at)
        if at < 0:
            return []
        head = int(row[6]) - 1
        head = head + first if head >= 0 else ROOT
        out.append(GoldWord(begin + at, begin + at + len(row[1]), row[3], head, row[7]))
        at += len(row[1])
    return out


def treebank(path: Path, count: int | None = None) -> list[Text]:
    """The first sentences of a treebank whose words stand in their text as they are written."""
    out = []
    for document in sentences(path):
        for text, rows in document:
            words = gold_words(text, rows)
            if words:
                out.append(Text(text, Gold(tuple(words))))
            if len(out) == count:
                return out
    return out


ROUNDING = 1e-4  # of a weight: scores of 60 in float32 leave their exponentials no better
AMBIGUOUS = 0.01  # of all that is asked may hang on rounding: with more, the claim would be empty
TOGETHER = 16  # texts in one call of the model: short ones are not padded to the length of long ones
FAR, UNSEEN = 64, 0.5  # offsets beyond are as this one; what each offset's count is raised by


class Count(NamedTuple):
    """What a column counts in one text: for every head at least `low` and at most `high`, of `den`."""

    low: Any
    high: Any
    den: float

    def __add__(self, other: "Count") -> "Count":
        return Count(self.low + other.low, self.high + other.high, self.den + other.den)


Counts = dict[str, Count]
Sight = Callable[[int, int], ndarray]
"""Which tokens may look at which, [q, k], by layer and length."""


# ------------------------------------------------------------------------------------------- what the library says


class Said(NamedTuple):
    """The library's numerators and denominators, [text, head, column], heads of all layers after one another."""

    names: tuple[str, ...]
    num: ndarray
    den: ndarray

    def column(self, name: str) -> tuple[ndarray, ndarray]:
        at = self.names.index(name)
        return self.num[..., at], self.den[..., at]

    def share(self, name: str) -> ndarray:
        """Of all texts together, a head."""
        num, den = (part.sum(0) for part in self.column(name))
        return num / den


def said(lm: Any, texts: Sequence[Text], statistics: Sequence[Statistic], batch_tokens: int = 2_048) -> Said:
    """Measured in batches of like length, texts back in the order in which they were given."""
    reading = read(lm, [Document(each.text, "", each.gold) for each in texts])
    assert len(reading.pieces) == len(texts)
    groups = reading.groups(batch_tokens)
    made = [*sums_of(by_model(lm), reading.batches(batch_tokens), tuple(statistics), sinks=Sinks())]
    back = np.argsort([text for group in groups for text in group])
    num = torch.cat([batch.num for batch in made]).numpy()[back]
    den = torch.cat([batch.own_of(range(len(statistics))) for batch in made]).numpy()[back]
    return Said(tuple(each.name for each in statistics), num, den)


# ------------------------------------------------------------------------------------- what the model's maps say


class Looks(NamedTuple):
    """What one text's words look at: `sees[w, v]`, and for some heads `weights[h, w, v]` and `beside[h, w]`, the most
    that a token of no word gets. `moved` and `moved_beside` are the same by what each key's value can move."""

    sees: ndarray
    weights: ndarray
    beside: ndarray
    moved: ndarray
    moved_beside: ndarray


def everything(layer: int, length: int) -> ndarray:
    return np.ones((length, length), bool)


def causal(layer: int, length: int) -> ndarray:
    return np.tri(length, dtype=bool)


def windowed(layer: int, length: int) -> ndarray:
    """Gemma 2: seven tokens in the even layers."""
    return np.tri(length, dtype=bool) & ~np.tri(length, k=-7, dtype=bool) if layer % 2 == 0 else causal(layer, length)


SIGHT = {"bert": everything, "gpt2": causal, "llama": causal, "gemma2": windowed}


def looks_of(lm: Any, texts: Sequence[Text], kind: str) -> list[list[Looks]]:
    """Of each text, one for all layers, or one a layer where they see differently. `kind` is one of SIGHT's."""
    out: list[list[Looks]] = [[]] * len(texts)
    order = sorted(range(len(texts)), key=lambda at: len(texts[at].text))
    for begin in range(0, len(texts), TOGETHER):
        some = order[begin : begin + TOGETHER]
        for at, looks in zip(some, _looks_of(lm, [texts[at] for at in some], kind), strict=True):
            out[at] = looks
    return out


def _looks_of(lm: Any, texts: Sequence[Text], kind: str) -> Iterator[list[Looks]]:
    got = lm.tokenizer([each.text for each in texts], padding=True, return_tensors="pt")
    inputs = {key: got[key] for key in ("input_ids", "attention_mask")}
    maps, norms = eager_maps(lm.model, **inputs), value_norms_of(lm.model, inputs, kind)
    every = range(len(maps))
    for number, (text, span) in enumerate(zip(texts, spans(inputs["attention_mask"]), strict=True)):
        alone = lm.tokenizer(text.text, return_offsets_mapping=True, return_special_tokens_mask=True)
        of_token = words_of(text, alone["offset_mapping"], alone["special_tokens_mask"])
        yield [
            _looks(
                torch.cat([maps[layer][number, :, span, span] for layer in some]).double().numpy(),
                torch.cat([norms[layer][number, :, span] for layer in some]).double().numpy(),
                of_token,
                len(text.gold.words) if text.gold else 0,
                SIGHT[kind](some[0], len(of_token)),
            )
            for some in ([[layer] for layer in every] if SIGHT[kind] is windowed else [[*every]])
        ]


def words_of(text: Text, offsets: Iterable[tuple[int, int]], added: Iterable[int]) -> list[int | None]:
    """The word in which a token's first character that is not a blank stands, if any."""
    out: list[int | None] = []
    for (begin, end), special in zip(offsets, added, strict=True):
        first = next((at for at in range(begin, end) if not text.text[at].isspace()), None)
        words = enumerate(text.gold.words if text.gold else ())
        own = [number for number, word in words if first is not None and word.begin <= first < word.end]
        out.append(own[0] if own and not special else None)
    return out


def _looks(maps: ndarray, norms: ndarray, of_token: Sequence[int | None], num_words: int, may: ndarray) -> Looks:
    """To a word the sum over its tokens, from it the mean; never itself."""
    tokens = [[k for k, word in enumerate(of_token) if word == number] for number in range(num_words)]
    none = [k for k, word in enumerate(of_token) if word is None]
    sees = np.zeros((num_words, num_words), bool)
    out = [np.zeros((len(maps), num_words, num_words)) for _ in range(2)]
    beside = [np.full((len(maps), num_words), -1.0) for _ in range(2)]
    for w in range(num_words):
        if not tokens[w]:
            continue
        row = sum(maps[:, i] for i in tokens[w]) / len(tokens[w])
        for seen, kept, most in ((row, out[0], beside[0]), (row * norms, out[1], beside[1])):
            for v in range(num_words):
                for k in tokens[v]:
                    kept[:, w, v] += seen[:, k]
            if none:
                most[:, w] = seen[:, none].max(-1)
        for v in range(num_words):
            sees[w, v] = v != w and any(may[i, k] for i in tokens[w] for k in tokens[v])
    return Looks(sees, out[0], beside[0], out[1], beside[1])


# --------------------------------------------------------------------------------------------- who looks at whom most


class Winners(NamedTuple):
    """Who may be the strongest, [h, candidate]; whether one may win at all against what is beside, and must, [h]."""

    who: ndarray
    may: ndarray
    must: ndarray

    def are(self, targets: Iterable[int]) -> Count:
        """How often one of the targets is called the strongest: once, or not at all."""
        right = np.zeros(self.who.shape[1], bool)
        right[list(targets)] = True
        sure = (self.who & right).any(1) & ~(self.who & ~right).any(1) & self.must
        return Count(sure.astype(float), ((self.who & right).any(1) & self.may).astype(float), 1)

    def worth(self, values: ndarray) -> Count:
        """The value of the candidate that is called the strongest."""
        low = np.where(self.who, values, np.inf).min(1)
        return Count(low, np.where(self.who, values, -np.inf).max(1), 1)


def winners(scores: ndarray, candidates: ndarray, beside: ndarray | None = None) -> Winners:
    """Of scores [h, n] among some candidates; `beside` [h] competes, but never counts."""
    shown = np.where(candidates, scores, -1.0)
    best = shown.max(1)
    who = candidates & (shown >= best[:, None] * (1 - ROUNDING))
    beside = np.full(len(best), -1.0) if beside is None else beside
    return Winners(who, beside <= best * (1 + ROUNDING), beside <= best * (1 - ROUNDING))


def always(value: float, num_heads: int) -> Count:
    """What hangs on no head."""
    return Count(np.full(num_heads, float(value)), np.full(num_heads, float(value)), 1)


def summed(parts: Iterable[tuple[str, Count]]) -> Counts:
    out: Counts = {}
    for name, count in parts:
        out[name] = out[name] + count if name in out else count
    return out


def assert_counted(got: Said, wanted: Sequence[Sequence[Counts]]) -> None:
    """Every column of every head and text lies within its bounds. `wanted[text]` has one a `Looks`; what is missing
    was never asked."""
    low, high, den = (np.zeros_like(got.num) for _ in range(3))
    place = {name: at for at, name in enumerate(got.names)}
    for text, parts in enumerate(wanted):
        num_heads = got.num.shape[1] // len(parts)
        for part, counts in enumerate(parts):
            heads = slice(part * num_heads, (part + 1) * num_heads)
            for name, count in counts.items():
                for out, value in zip((low, high, den), count, strict=True):
                    out[text, heads, place[name]] = value
    _assert_none(den != got.den, got, "counted", got.den, "but there are", den)
    _assert_none((got.num < low - 1e-6) | (got.num > high + 1e-6), got, "is", got.num, "but the maps say", low, high)
    unsure = (high - low).sum() / den.sum()
    assert len(wanted) == len(got.num) and unsure <= AMBIGUOUS, f"{unsure:.1%} hang on rounding: too many to judge by"


def _assert_none(wrong: ndarray, got: Said, *told: Any) -> None:
    if wrong.any():
        text, head, column = (int(at[0]) for at in wrong.nonzero())
        shown = [each if isinstance(each, str) else f"{each[text, head, column]:.6f}" for each in told]
        where = f"{got.names[column]} of head {head} in text {text}"
        raise AssertionError(f"{where} {' '.join(shown)} ({wrong.mean():.1%} of all are wrong)")
