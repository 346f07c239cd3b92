"""What a head says at one word: where it looks, what it fetches there, what it adds to the stream, and that in words.

A head's output is a mean of values, `o = sum_j w_j v_j`, weighted by its look. A word that is looked at need not be
heard: [CLS] may take half of a look, and have a value that is next to nothing. What is heard of word j is its share of
the output along the output itself, `w_j (v_j . o) / (o . o)`. These shares sum to 1; one below 0 speaks against the
others. Where the output is short beside the values that it is made of (`SILENT`), they cancel, and no share means
anything: the head says next to nothing there.

`head_output` and `layer_output` read a recording that holds values (`keep=("q", "k", "v", "lse")`); with the model as
well they say what is added to the residual stream. A closing sentence is made from the numbers, one of `SENTENCES`, of
words and not of pieces; the page makes it from the same table.
"""

# device: one row of one text, moved to the host

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64
from numpy import ndarray
from torch import Tensor

from manyheads.base import Json, brief, percent, plain, plural
from manyheads.circuits.says.stream import Addition, Norm, additions
from manyheads.circuits.why import LEAST_SHARE
from manyheads.errors import HeadError, ManyHeadsError, ShapeError, TextError
from manyheads.heads import Head, HeadLike
from manyheads.models import LoadedModel
from manyheads.models.taps import TOLERANCE
from manyheads.recording import LayerRecord, Recording, SpacedWord
from manyheads.results import NotIterated, Shown
from manyheads.spec import CROSS
from manyheads.texts import Sinks, Unit, Words, readable

OTHERS = -1
"""The number of the column that stands for all keys without one of their own."""
SILENT = 0.15
"""A head says next to nothing where its output is shorter than this share of the mean length of the values it sees."""
PARKED = 0.5
"""From this share of a look on, the look is parked."""
SPREAD = 2.0
"""No share above this many times an even one: a head that listens to everyone."""
FOUND = 0.25
"""A head has found a word that has at least this share of its look."""
NOTED = 0.01
"""From this share of a look on, a parking spot is named beside the answer."""
LEAST_KEYS = 3
"""Columns: the word that asks, one that answers, all others."""
NOT_KEPT = 'values were not kept: record(lm, text, keep=("q", "k", "v", "lse"))'
COUNTS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
SENTENCES = {
    "blind": "{me} sees nothing here.",
    "nobody": "{me} found little to ask for: {look} of its look goes to nobody.",
    "parked": "{me} found little to ask for: {look} of its look parks on {top}, which {says} {heard} of the answer.",
    "parked, silent": (
        "{me} found little to ask for: {look} of its look parks on {top}; this head says next to nothing."
    ),
    "parked, unheard": "{me} found little to ask for: {look} of its look parks on {top}.",
    "silent": "{me} looks most at {top} ({look}), and this head says next to nothing here.",
    "everyone": "{me} listens to everyone a little.",
    "everyone, unheard": "{me} looks at everyone a little.",
    "itself": "{me} answers itself: {look} of the look, {heard} of what this head says.",
    "answered": "{me} asked and {top} answered: {look} of the look, {heard} of what this head says.",
    "another": "{me} looks most at {top} ({look}) and hears most of {loudest} ({heard}).",
    "unheard": "{me} looks most at {top}: {look} of the look.",
    "layer": "{looks} became one vector; the head that found {top} wrote {wrote} of it.",
    "layer, parked": "{looks} became one vector; {head} wrote {wrote} of it, more than any other.",
    "pass": "Layer {layer} moved {me} most: {share} of what it became. There {head} looks at {top}.",
    "pass, next": "After {me} comes {next}, the model says ({chance}). Layer {layer} moved it most: {share}.",
    "layer, unheard": "{looks} at the same text; {head} looks most firmly: {look} of its look is on {top}.",
}
"""The closing sentences. `me`, `top` and `loudest` are words in quotes, special tokens without; the rest are shares."""
FIGURES = {
    "loudest": "loudest: {loudest}, {heard} of what this head says",
    "parked": "{top} takes {look} of the look and says {heard} of the answer",
    "next": "next: {top}, {look} of the look, {heard} of the answer",
    "look": "next: {top}, {look} of the look",
    "alone": "{heads}: no single head speaks alone",
    "most": "{heads}: one head speaks for most",
}
"""The line of figures under each closing sentence."""


class Voice(NamedTuple):
    """One word (or special token) of those that a head sees: what it is called, and its part in look and output.

    `look`: its share of the look; `heard`: its share of the output, NaN where that is unknown or next to nothing;
    `even`: its share of an even look; `parks`: whether it is a special token or a sink of the model; `is_me`: whether
    it asks.
    """

    name: str
    look: float
    heard: float
    even: float
    parks: bool
    is_me: bool


@dataclass(frozen=True, eq=False)
class HeadOutput(Shown, NotIterated):
    """What one head says at one token of a text, with every number on the way.

    - `head`, `query`, `word`: the head, the token that asks (its position) and its word.
    - `keys`: positions of the keys that have columns, in order; the last may be `OTHERS`: all others that it sees.
    - `num_others`, `num_hidden`: keys that `OTHERS` stands for; keys without a column that it does not see.
    - `tokens`: the columns' tokens as people read them.
    - `q`, `k`, `v`: as attention received them, `turned` by position in models that rotate. NaN: the others' k.
    - `scores`: after scale, softcap and `bias`; NaN: hidden. The others': the log of their summed exp.
    - `weights`: the shares of the look; `missing`, the share that goes to no key: a learned sink (`sink`, its score)
      without a value.
    - `heard`: the shares of the output, `out`. The others' v is the mean of theirs, weighted, so that all sums hold.
    - `adds`, `before`: what `out` adds to the residual stream, and the stream before that. `wrote`: the share of `adds`
      in what the whole layer adds, along that.
    - `scale`, `softcap`, `lse`: of the scores; `kv_head` serves the query heads `group`.
    - `norm`: "pre", "post" or "none"; `branch_norm`: whether a norm stands between the heads' sum and the stream, which
      is held as it acted.
    - `silent`: whether the head says next to nothing here: then `heard` is None.
    - `voices`: all that it sees, by words.
    - `because`: why values, or what is added, are None.
    """

    instead = "its columns are .keys, with .weights and .heard"

    head: Head
    query: int
    word: str
    keys: tuple[int, ...]
    num_others: int
    num_hidden: int
    tokens: tuple[str, ...]
    q: Float64[ndarray, "d"]
    k: Float64[ndarray, "n d"]
    v: Float64[ndarray, "n f"] | None
    scores: Float64[ndarray, "n"]
    weights: Float64[ndarray, "n"]
    bias: Float64[ndarray, "n"] | None
    heard: Float64[ndarray, "n"] | None
    out: Float64[ndarray, "f"] | None
    adds: Float64[ndarray, "m"] | None
    before: Float64[ndarray, "m"] | None
    wrote: float | None
    scale: float
    softcap: float | None
    lse: float
    sink: float | None
    missing: float
    kv_head: int
    group: tuple[int, ...]
    norm: Norm
    branch_norm: bool
    silent: bool
    voices: tuple[Voice, ...]
    because: str

    @property
    def sentence(self) -> str:
        """The closing sentence: who asked, who answered, and with what share."""
        return head_sentence(self.word, self.voices, self.missing, self.silent)[0]

    @property
    def figures(self) -> str:
        """A second line under the sentence: the figure that stands beside it."""
        return head_sentence(self.word, self.voices, self.missing, self.silent)[1]

    def to_dict(self) -> Json:
        """Plain data for JSON: the sentence, the shares by word and by token, and the vectors."""
        rows = zip(self.keys, self.tokens, self.scores, self.weights, strict=True)
        heard = [None] * len(self.keys) if self.heard is None else self.heard.tolist()
        return {
            "head": str(self.head),
            "query": self.query,
            "word": self.word,
            "sentence": self.sentence,
            "figures": self.figures,
            "silent": self.silent,
            "nobody": self.missing,
            "words": [plain({**voice._asdict()}) for voice in sorted(self.voices, key=lambda voice: -voice.look)],
            "tokens": [
                plain({"key": key, "token": token, "score": score, "look": weight, "heard": share})
                for (key, token, score, weight), share in zip(rows, heard, strict=True)
            ],
            "out": plain(self.out),
            "adds": plain(self.adds),
            "before": plain(self.before),
            "wrote": self.wrote,
            "scale": self.scale,
            "norm": self.norm,
            "because": self.because,
        }

    def __repr__(self) -> str:
        return brief(f"HeadOutput({self.head} at {self.word!r}: {self.sentence})")

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, eq=False)
class LayerOutput(Shown, NotIterated):
    """What all heads of a layer say at one token, and how their outputs become one vector.

    - `heads`: one `HeadOutput` each; all have the same `keys`, and none has what it adds.
    - `adds`: what each adds to the residual stream; `output_bias`, what the output projection's bias adds.
    - `wrote`: the share of each in what the layer adds, along that; `bias_wrote`, the bias'. Together they are 1.
    - `before`, `after`: the stream around the sum; `normed`, what heads read of it where a norm stands before;
      `beside`, what a feed-forward adds in the same sum (parallel branches).
    - `norm`, `branch_norm`, `because`: as those of a head.
    """

    instead = "its heads are .heads"

    heads: tuple[HeadOutput, ...]
    adds: Float64[ndarray, "h m"] | None
    output_bias: Float64[ndarray, "m"] | None
    before: Float64[ndarray, "m"] | None
    after: Float64[ndarray, "m"] | None
    normed: Float64[ndarray, "m"] | None
    beside: Float64[ndarray, "m"] | None
    norm: Norm
    branch_norm: bool
    because: str

    @cached_property
    def _shares(self) -> tuple[Float64[ndarray, "h"], float] | None:
        if self.adds is None or self.output_bias is None:
            return None
        total = self.adds.sum(0) + self.output_bias
        square = max(float(total @ total), 1e-300)
        return self.adds @ total / square, float(self.output_bias @ total / square)

    @property
    def wrote(self) -> Float64[ndarray, "h"] | None:
        return None if self._shares is None else self._shares[0]

    @property
    def bias_wrote(self) -> float | None:
        return None if self._shares is None else self._shares[1]

    @property
    def sentence(self) -> str:
        """The closing sentence: what became of all looks, and whose part was which."""
        return layer_sentence([head.head for head in self.heads], [head.voices for head in self.heads], self.wrote)[0]

    @property
    def figures(self) -> str:
        """A second line under the sentence: who wrote most."""
        return layer_sentence([head.head for head in self.heads], [head.voices for head in self.heads], self.wrote)[1]

    def to_dict(self) -> Json:
        """Plain data for JSON: the sentence, and each head's first word and share of what the layer adds."""
        wrote = [None] * len(self.heads) if self.wrote is None else self.wrote.tolist()
        rows = [
            {"head": str(head.head), "wrote": share, "sentence": head.sentence}
            for head, share in zip(self.heads, wrote, strict=True)
        ]
        vectors = {name: plain(getattr(self, name)) for name in ("adds", "output_bias", "before", "after")}
        words = {"sentence": self.sentence, "figures": self.figures, "heads": rows, "bias_wrote": self.bias_wrote}
        return {**words, **vectors, "norm": self.norm, "because": self.because}

    def __repr__(self) -> str:
        return brief(f"LayerOutput({self.sentence})")

    def __str__(self) -> str:
        return self.sentence


def head_output(
    recording: Recording,
    head: HeadLike,
    word: str | int,
    lm: LoadedModel | None = None,
    *,
    text: int = 0,
    keys: int | None = None,
    sinks: Sinks | None = None,
) -> HeadOutput:
    """What one head says at one word: scores, shares of its look and of its output, what it adds to the stream.

    - `recording`: best with values, `record(lm, text, keep=("q", "k", "v", "lse"))`; without them there are scores and
      shares of the look alone.
    - `head`: as "L3H1".
    - `word`: a word of the text as it is spelt ("it#2" is the second "it"), or a token's position; of a word in pieces
      its last one asks, which has read the others.
    - `lm`: the recorded model, for what the output adds to the stream: one forward pass.
    - `text`: which text, from 0.
    - `keys`: at most so many columns: the word that asks, those with the largest shares, and one for all others. None:
      every key has a column.
    - `sinks`: where the model parks its look (`measure(...).sinks`), beside special tokens. None: what the recording
      knows about it.

    Cost: O(keys * d). Errors: HeadError; TextError for a word that is not in the text, or is there several times;
    ShapeError for positions and texts that are not there.
    """
    layer, index = _layer_of(recording, head)
    query = query_of(recording, layer, word, text)
    row = OutputRow(recording, layer, query, text, sinks)
    stream, because = _stream(lm, recording, layer, query, text)
    return row.head_output(index, row.columns([index], keys), stream, because)


def layer_output(
    recording: Recording,
    layer: str | int,
    word: str | int,
    lm: LoadedModel | None = None,
    *,
    text: int = 0,
    keys: int | None = None,
    sinks: Sinks | None = None,
) -> LayerOutput:
    """What all heads of a layer say at one word, and how the output projection makes one vector of it.

    - `recording`, `word`, `lm`, `text`, `sinks`: as for `head_output`.
    - `layer`: its number, or as "L3" or "decoder:L3".
    - `keys`: at most so many columns, chosen by the largest share in any head.

    Cost: O(heads * keys * d); with `lm` one forward pass and O(heads * f * m). Errors: as `head_output`.
    """
    record = layer_called(recording, layer)
    query = query_of(recording, record, word, text)
    row = OutputRow(recording, record, query, text, sinks)
    return row.layer_output(keys, *_stream(lm, recording, record, query, text))


def layer_called(recording: Recording, name: str | int) -> LayerRecord:
    """The layer of that name. Errors: HeadError, RecordingError."""
    if isinstance(name, int):
        return recording.layers[name]
    for layers in recording.stacks.values():
        for number, site in zip(layers.numbers, layers.sites, strict=True):
            if str(site) == name:
                return layers[number]
    listed = [str(site) for layers in recording.stacks.values() for site in layers.sites]
    raise HeadError(f"there is no layer {name!r} in this recording: it has {listed[0]} to {listed[-1]}.")


def _layer_of(recording: Recording, head: HeadLike) -> tuple[LayerRecord, int]:
    head = Head.parse(head)
    layer = layer_called(recording, str(head).rpartition("H")[0])
    if head.index >= layer.site.num_heads:
        raise HeadError(f"there is no head {head} in this recording: {layer.site.heads[-1]} is the layer's last.")
    return layer, head.index


def query_of(recording: Recording, layer: LayerRecord, word: str | int, text: int) -> int:
    """The position of the token that asks. Errors: TextError, ShapeError."""
    num_texts = len(layer.lengths)
    if not 0 <= text < num_texts:
        raise ShapeError(f"{text=} is not in this recording: it holds {num_texts} texts, counted from 0.")
    if isinstance(word, int):
        if not 0 <= word < layer.num_queries(text):
            raise ShapeError(f"there is no token {word}: this text has {layer.num_queries(text)}, counted from 0.")
        return word
    words = Words.of(layer.tokens)
    place = SpacedWord.place(words, word, text)
    if isinstance(place, str):
        raise TextError(place)
    return words.units(text)[place].tokens[-1]


def _stream(
    lm: LoadedModel | None, recording: Recording, layer: LayerRecord, query: int, text: int
) -> tuple[Addition | None, str]:
    """What the layer adds, or why that is not known."""
    if lm is None:
        return None, "what is added to the stream needs the model: give lm="
    try:
        known = additions(lm, recording.tokens, query, text)
    except ManyHeadsError as error:
        return None, str(error)
    return known.of(layer.site)


class Columns(NamedTuple):
    """Keys with columns of their own, in order, and whether one more stands for all others."""

    keys: tuple[int, ...]
    others: bool


class OutputRow:
    """One token's row in every head of a layer, in float64: what `HeadOutput` and `LayerOutput` are made of.

    `units`: the words of the keys' text, where they are known already. Errors: ShapeError, TextError.
    """

    def __init__(
        self,
        recording: Recording,
        layer: LayerRecord,
        query: int,
        text: int = 0,
        sinks: Sinks | None = None,
        units: Sequence[Unit] | None = None,
    ) -> None:
        self.layer, self.query, self.text = layer, query, text
        self.num_keys = layer.num_keys(text)
        self.visible = layer.mask_of(text).visible(slice(query, query + 1), slice(0, self.num_keys))[0, :, 0].cpu()
        self.rule = layer.rule.texts(slice(text, text + 1))
        # Cross-attention looks at the encoder's text; other keys (patches of a picture) are no text.
        main = recording.tokens
        is_text = not layer.crosses or (
            layer.site.stack == CROSS and bool(main.pieces) and main.longest == layer.k.shape[2]
        )
        key_tokens = (main if layer.crosses else layer.tokens).text(text) if is_text else None
        self.key_tokens = None if key_tokens is None or not key_tokens.pieces else key_tokens
        self.names, self.members, self.parks = self._units(units, sinks)
        self.word = self._word()

    def _units(
        self, units: Sequence[Unit] | None, sinks: Sinks | None
    ) -> tuple[list[str], list[tuple[int, ...]], list[bool]]:
        """Each word of the keys, as it is called in a sentence; its tokens; whether a look may park there."""
        tokens = self.key_tokens
        if tokens is None:
            return (
                [f"place {key}" for key in range(self.num_keys)],
                [(key,) for key in range(self.num_keys)],
                [False] * self.num_keys,
            )
        units = Words.of(tokens).units() if units is None else units
        special = tokens.real[0] & ~tokens.ordinary[0] if tokens.special is not None else tokens.real[0] & False
        sink = (
            special
            if tokens.ids is None
            else special | tokens.with_sinks(tokens.sinks if sinks is None else sinks).sink[0]
        )
        pieces = readable(tokens)
        texts = [unit.text if unit.special or unit.word >= 0 else pieces[unit.tokens[0]] for unit in units]
        names = SpacedWord.in_sentences(texts, [unit.special for unit in units])
        return names, [unit.tokens for unit in units], [bool(sink[list(unit.tokens)].all()) for unit in units]

    def _word(self) -> str:
        """The asking word, as it is called in a sentence."""
        if not self.layer.crosses and self.key_tokens is not None:
            return self.name_of(self.query)
        tokens = self.layer.tokens.text(self.text)
        return SpacedWord.in_sentences(readable(tokens))[self.query] if tokens.pieces else f"place {self.query}"

    def name_of(self, key: int) -> str:
        """The word of a key, as it is called in a sentence."""
        return next(name for name, members in zip(self.names, self.members, strict=True) if key in members)

    def visible_to(self, head: int) -> Bool[Tensor, "n"]:
        """Which keys a head sees from here."""
        return self.visible[head if len(self.visible) > 1 else 0]

    def keys_of(self, head: int) -> Float64[Tensor, "n d"]:
        group = self.layer.site.kv_head_of(head)
        return self.layer.k[self.text, group, : self.num_keys].double().cpu()

    def values_of(self, head: int) -> Float64[Tensor, "n f"] | None:
        if self.layer.v is None:
            return None
        return self.layer.v[self.text, self.layer.site.kv_head_of(head), : self.num_keys].double().cpu()

    def bias_of(self, head: int) -> Float64[Tensor, "n"] | None:
        if self.rule.bias is None:
            return None
        place = min(head, self.rule.bias.shape[1] - 1)  # an axis of 1 serves every head
        return self.rule.bias[0, place, self.query, : self.num_keys].double().cpu()

    def look(self, head: int) -> tuple[Float64[Tensor, "n"], Float64[Tensor, "n"], float]:
        """A head's scores (-inf: hidden), its weights, and the log of the sum that they are shares of."""
        q = self.layer.q[self.text, head, self.query].double().cpu()
        scores = self.rule.finish_cells(self.rule.scale * (self.keys_of(head) @ q), self.bias_of(head))
        scores = scores.masked_fill(~self.visible_to(head), -math.inf)
        lse = torch.logsumexp(scores, 0) if len(scores) else torch.tensor(-math.inf, dtype=torch.float64, device="cpu")
        if (sink := self.sink_of(head)) is not None:
            lse = torch.logaddexp(lse, torch.tensor(sink, dtype=torch.float64, device="cpu"))
        if not math.isfinite(float(lse)):
            return scores, torch.zeros_like(scores), -math.inf
        return scores, (scores - lse).exp(), float(lse)

    def sink_of(self, head: int) -> float | None:
        return None if self.rule.sinks is None else float(self.rule.sinks[head])

    def out_of(self, head: int) -> Float64[Tensor, "f"] | None:
        """The head's output: the mean of values that it makes of its look."""
        values = self.values_of(head)
        return None if values is None else self.look(head)[1] @ values

    def columns(self, heads: Sequence[int], most: int | None) -> Columns:
        """The keys that have columns: all of them, or those with the largest shares in any of these heads."""
        if most is not None and most < LEAST_KEYS:
            raise ShapeError(
                f"keys={most}: give {LEAST_KEYS} or more: the word that asks, one that answers, all others."
            )
        if most is None or self.num_keys <= most:
            return Columns(tuple(range(self.num_keys)), False)
        visible = torch.stack([self.visible_to(head) for head in heads]).any(0)
        if int(visible.sum()) <= most:
            return Columns(tuple(visible.nonzero()[:, 0].tolist()), False)
        largest = torch.stack([self.look(head)[1] for head in heads]).amax(0).masked_fill(~visible, -1)
        if not self.layer.crosses and bool(visible[self.query]):
            largest[self.query] = math.inf  # the word that asks always has a column
        return Columns(tuple(sorted(largest.topk(most - 1).indices.tolist())), True)

    def head_output(self, head: int, columns: Columns, stream: Addition | None, because: str) -> HeadOutput:
        """One head's output in these columns; `stream`: what its layer adds, None `because` of that."""
        site, visible = self.layer.site, self.visible_to(head)
        scores, weights, lse = self.look(head)
        values, bias, sink = self.values_of(head), self.bias_of(head), self.sink_of(head)
        out, heard, silent = None, None, False
        if values is not None:
            out = weights @ values
            mean_length = float(values[visible].norm(dim=-1).mean()) if bool(visible.any()) else 0.0
            silent = not float(out.norm()) >= SILENT * mean_length or not bool(out.any())
            heard = None if silent else weights * (values @ out) / (out @ out)
        else:
            stream, because = None, NOT_KEPT
        adds = before = wrote = None
        if stream is not None and out is not None:
            stream, because = self._trusted(head, out, stream)
        if stream is not None and out is not None:
            adds = stream.of_heads(out[None].to(stream.joined.device), slice(head, head + 1))[0]
            before, total = stream.before, stream.of_layer
            wrote = float(adds @ total / total.square().sum().clamp_min(1e-300))
        chosen = torch.tensor(columns.keys, dtype=torch.long, device="cpu")
        left = visible.clone()
        left[chosen] = False
        tokens = ("",) * self.num_keys if self.key_tokens is None else readable(self.key_tokens)
        tokens = tuple(tokens[key] or f"place {key}" for key in columns.keys)

        def together(values: Tensor | None, others: Tensor | None = None) -> ndarray | None:
            """The columns' part of what every key has, and the others' beside it."""
            if values is None:
                return None
            part = values[chosen]
            if columns.others:
                last = torch.full_like(values[:1], math.nan) if others is None else others.reshape(values[:1].shape)
                part = torch.cat([part, last])
            return part.numpy()

        share = weights[left].sum()
        mean = None if values is None else weights[left] @ values[left] / share.clamp_min(1e-300)
        num_hidden = self.num_keys - int(visible.sum()) - int((~visible[chosen]).sum())
        k, all_scores = together(self.keys_of(head)), together(scores, torch.logsumexp(scores[left], 0))
        all_weights = together(weights, share)
        assert k is not None and all_scores is not None and all_weights is not None
        per_group = site.num_heads // site.num_kv_heads
        group = site.kv_head_of(head)
        return HeadOutput(
            site.heads[head],
            self.query,
            self.word,
            (*columns.keys, *([OTHERS] if columns.others else [])),
            int(left.sum()) if columns.others else 0,
            num_hidden,
            (*tokens, *([plural(int(left.sum()), "other")] if columns.others else [])),
            self.layer.q[self.text, head, self.query].double().cpu().numpy(),
            k,
            together(values, mean),
            np.where(np.isneginf(all_scores), np.nan, all_scores),
            all_weights,
            together(bias),
            together(heard, None if heard is None else heard[left].sum()),
            None if out is None else out.numpy(),
            None if adds is None else adds.cpu().numpy(),
            None if before is None else before.cpu().numpy(),
            wrote,
            self.rule.scale,
            self.rule.softcap,
            lse,
            sink,
            0.0 if sink is None or not math.isfinite(lse) else math.exp(sink - lse),
            group,
            tuple(range(group * per_group, (group + 1) * per_group)),
            "none" if stream is None else stream.norm,
            stream is not None and stream.branch is not None,
            silent,
            self._voices(visible, weights, heard),
            because,
        )

    def layer_output(self, most: int | None, stream: Addition | None, because: str) -> LayerOutput:
        """All heads' outputs, in columns that they share; `stream`, `because`: as for a head."""
        every = range(self.layer.site.num_heads)
        columns = self.columns(every, most)
        heads = tuple(self.head_output(head, columns, None, because) for head in every)
        outs = [head.out for head in heads if head.out is not None]
        if not outs:
            stream, because = None, NOT_KEPT
        for head, out in zip(every, outs, strict=False):
            if stream is not None:
                stream, because = self._trusted(head, torch.from_numpy(out), stream)
        if stream is None:
            return LayerOutput(heads, None, None, None, None, None, None, "none", False, because)
        out = torch.from_numpy(np.stack(outs)).to(stream.joined.device)

        def on_host(values: Tensor | None) -> ndarray | None:
            return None if values is None else values.cpu().numpy()

        return LayerOutput(
            heads,
            on_host(stream.of_heads(out)),
            on_host(stream.of_bias),
            on_host(stream.before),
            on_host(stream.after),
            on_host(stream.normed),
            on_host(stream.beside),
            stream.norm,
            stream.branch is not None,
            because,
        )

    def _trusted(self, head: int, out: Float64[Tensor, "f"], stream: Addition) -> tuple[Addition | None, str]:
        """What the layer adds, unless the model has another output now than was recorded."""
        joined = stream.joined.cpu()
        own = out if stream.gain is None else out * stream.gain[head].cpu()
        if float((own - joined[head]).norm()) <= TOLERANCE[self.layer.q.dtype] * max(float(joined.norm()), 1e-30):
            return stream, ""
        return None, (
            "the model gives other outputs than were recorded (heads were edited, or it is another model), so what is "
            "added to the stream is not known"
        )

    def _voices(self, visible: Tensor, weights: Tensor, heard: Tensor | None) -> tuple[Voice, ...]:
        """All that a head sees, by words."""
        seen, num_visible = visible.tolist(), max(1, int(visible.sum()))
        shares, parts = weights.tolist(), None if heard is None else heard.tolist()
        voices = []
        for name, members, parks in zip(self.names, self.members, self.parks, strict=True):
            keys = [key for key in members if seen[key]]
            if keys:
                part = math.nan if parts is None else sum(parts[key] for key in keys)
                look, is_me = sum(shares[key] for key in keys), not self.layer.crosses and self.query in members
                voices.append(Voice(name, look, part, len(keys) / num_visible, parks and not is_me, is_me))
        return tuple(voices)


# ----------------------------------------------------------------------------------------------------------- in words


def head_sentence(me: str, voices: Sequence[Voice], missing: float, silent: bool) -> tuple[str, str]:
    """The closing sentence of one head at one word, and the line of figures under it.

    - `me`: the word that asks, as it is called.
    - `voices`: what the head sees, at least what it gives to each.
    - `missing`: nobody's share, a learned sink's.
    - `silent`: whether the output is next to nothing.
    """
    if not voices:
        return _sentence("blind", {"me": me}), ""
    by_look = sorted(voices, key=lambda voice: -voice.look)
    unheard = any(math.isnan(voice.heard) for voice in voices)
    loudest = by_look[0] if unheard else max(voices, key=lambda voice: voice.heard)
    top, figures = by_look[0], ""
    spots, parked = list[Voice](), 0.0
    for voice in by_look:  # the fewest that hold half of the look
        if voice.parks and parked < PARKED:
            spots.append(voice)
            parked += voice.look
    if missing >= PARKED:
        kind, top = "nobody", top._replace(look=missing)
    elif parked >= PARKED:
        names = [spot.name for spot in spots]
        name = " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
        top = top._replace(name=name, look=parked, heard=sum(spot.heard for spot in spots))
        kind = "parked, silent" if silent else "parked, unheard" if unheard else "parked"
    elif top.look <= SPREAD * top.even and top.look < PARKED and all(v.look <= SPREAD * v.even for v in voices):
        kind = "silent" if silent else "everyone, unheard" if unheard else "everyone"
    elif silent or unheard:
        kind = "silent" if silent else "unheard"
    elif loudest.name != top.name:
        kind = "another"
    else:
        kind = "itself" if top.is_me else "answered"
    words = {"me": me, "top": top.name, "look": percent(top.look), "loudest": loudest.name}
    if not unheard:
        words |= {"heard": percent((loudest if kind == "another" else top).heard)}
    words["says"] = "say" if len(spots) > 1 else "says"
    sentence = _sentence(kind, words)
    spot = next((voice for voice in by_look if voice.parks and voice.look >= NOTED), None)
    if kind in ("parked", "everyone", "nobody") and not unheard:
        figures = FIGURES["loudest"].format(loudest=loudest.name, heard=percent(loudest.heard))
    elif kind in ("answered", "itself", "another") and spot is not None and spot is not by_look[0]:
        figures = FIGURES["parked"].format(top=spot.name, look=percent(spot.look), heard=percent(spot.heard))
    elif len(by_look) > 1 and kind in ("answered", "itself", "another", "silent", "unheard"):
        second = by_look[1]
        form = "look" if unheard or silent else "next"
        words = {"top": second.name, "look": percent(second.look), "heard": percent(second.heard)}
        figures = FIGURES[form].format(**words)
    return sentence, figures


def layer_sentence(
    heads: Sequence[Head], voices: Sequence[Sequence[Voice]], wrote: Sequence[float] | Float64[ndarray, "h"] | None
) -> tuple[str, str]:
    """The closing sentence of a layer at one word, and the line of figures under it.

    - `heads`: of the layer.
    - `voices`: what each sees, as for `head_sentence`.
    - `wrote`: the share of each in what the layer adds; None where that is not known.
    """
    count = COUNTS[len(heads)].capitalize() if len(heads) < len(COUNTS) else f"{len(heads):,}"
    links = [
        (voice.look, head, voice)
        for head, of_head in enumerate(voices)
        for voice in of_head
        if not voice.parks and not voice.is_me and not _is_mark(voice.name)
    ]
    look, finder, answer = max(links, key=lambda link: link[0], default=(0.0, 0, None))
    words = {"looks": plural(len(heads), "look").replace(f"{len(heads):,}", count)}
    firm = answer is not None and look > SPREAD * answer.even and look >= FOUND
    if wrote is None:
        if answer is None or not firm:
            return "", ""
        link = {"head": f"H{heads[finder].index}", "top": answer.name, "look": percent(look)}
        return _sentence("layer, unheard", words | link), ""
    order = sorted(range(len(heads)), key=lambda head: -float(wrote[head]))
    if answer is not None and firm:
        words |= {"top": answer.name, "wrote": percent(float(wrote[finder]))}
        sentence = _sentence("layer", words)
    else:
        words |= {"head": f"H{heads[order[0]].index}", "wrote": percent(float(wrote[order[0]]))}
        sentence = _sentence("layer, parked", words)
    listed = ", ".join(f"H{heads[head].index} {percent(float(wrote[head]))}" for head in order[:3])
    how = "alone" if float(wrote[order[0]]) < PARKED else "most"
    return sentence, FIGURES[how].format(heads=listed)


def _is_mark(name: str) -> bool:
    """Whether a word as sentences name it is a mark, such as '","', or one of several: 'the second ","'."""
    return not any(char.isalnum() for char in name.partition('"')[2] or name)


def _sentence(kind: str, words: Mapping[str, object]) -> str:
    """A closing sentence with its words: 'The second "to" asked', where it begins with such a name."""
    sentence = SENTENCES[kind].format_map(words)
    return sentence[:1].upper() + sentence[1:]


def pass_sentence(me: str, layer: int, moved: float, head: str, top: str, following: tuple[str, float] | None) -> str:
    """The closing sentence of a forward pass at one word.

    - `me`: the word, as it is called.
    - `layer`, `moved`: the layer whose heads and feed-forward are most of what the word became, and their share.
    - `head`, `top`: the head with the largest share there, and where it looks most.
    - `following`: the likeliest next word and its probability, of a model that goes on with a text.
    """
    words = {"me": me, "layer": layer, "share": percent(moved), "head": head, "top": top}
    if following is None:
        return _sentence("pass", words)
    written, probability = following
    words |= {"next": f'"{written.strip() or written}"', "chance": percent(probability)}
    return _sentence("pass, next", words)


def page_table() -> str:
    """The sentences and their limits, as the TypeScript that a page without a server imports."""
    limits = {
        "SILENT": SILENT,
        "PARKED": PARKED,
        "SPREAD": SPREAD,
        "FOUND": FOUND,
        "NOTED": NOTED,
        "LEAST_KEYS": LEAST_KEYS,
        "LEAST_SHARE": LEAST_SHARE,
    }
    lines = [
        "// Made from manyheads.circuits.says.outputs by `make web` (a test holds it): what a head says, in words.",
        "",
    ]
    for name, table in {"SENTENCES": SENTENCES, "FIGURES": FIGURES, "COUNTS": COUNTS}.items():
        lines.append(f"export const {name} = {json.dumps(table, indent=2)} as const;")
    lines += [f"export const {name} = {json.dumps(value)};" for name, value in limits.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page_table(), encoding="utf-8")
