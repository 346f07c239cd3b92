"""What a head writes and what it looks for, by its weights: full circuits over the vocabulary, and their nulls.

What it writes: a source's vector for each token, the norm before the layer, `W_V W_O`, the norms after, the unembedding
less its mean (`vocabulary.py`). What it looks for: the same of queries and keys, turned to a few distances. Either is
asked whether tokens meet themselves (`trace_share.py`), beside chance, which shuffles the vocabulary.

Two questions are asked of queries and keys. "the same token": both sides are the token as later layers see it.
"the token predicted": the query side is the direction in which the stream predicts a token. Keys of a stack's first
layer have not passed its feed-forward, so the first layer is not asked.

No scale is known from weights: every vector has a root mean square of 1, and numbers compare within a head alone.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from numpy import ndarray
from torch import Tensor, nn

from manyheads.attention import exact_arithmetic
from manyheads.circuits.head_matrices import HeadMatrices, NormFold, folds_of, head_matrices
from manyheads.circuits.writes.rotation import Rotation, rotations_of
from manyheads.circuits.writes.trace_share import CHUNK_TOKENS, Products, centred_product, eigenvalue_score
from manyheads.circuits.writes.vocabulary import Readout, Source, readout_of, token_vectors, vocabulary_size
from manyheads.errors import ModelError
from manyheads.measurement import spelled
from manyheads.models import TEXT, LoadedModel, sense_of
from manyheads.spec import CROSS, VISION, Site

Matching = str
MATCHING: dict[Matching, Source] = {"the same token": "token", "the token predicted": "prediction"}
"""What a head may look for, and the source of the query's side; the key's is the token as later layers see it."""
DISTANCES = (1, 8, 24)
DRAWS = 20  # of a shuffled vocabulary: their deviation is good to a sixth
WORDS = 400
SURE = 3.0  # deviations of chance
CLEAR = 0.4  # a trace share nearer to 0 says nothing: among hundreds of heads, chance reaches it
MOST = 5  # among so many tokens a word counts as copied, or as suppressed
WORD = re.compile(r"[A-Z]?[a-z]{3,}")
BLANKS = ("Ġ", "▁")  # how pieces of a vocabulary begin that stand for a word and the blank before it
EXAMPLES = 5  # words whose tables are made where no token was named
NO_WEIGHTS = "what its heads write is not known from weights"


Extremes = list[tuple[int, float]]
"""Tokens and their numbers, the furthest first."""


class TraceShare(NamedTuple):
    """A trace share, -1 to 1, and the standard deviation of chance, whose mean is 0."""

    value: float
    chance: float

    @property
    def counts(self) -> bool:
        """Whether it is far enough from 0, on either side, to say something."""
        return abs(self.value) >= max(CLEAR, SURE * self.chance)


class Ranks(NamedTuple):
    """In which share of the words the word itself is among the `MOST` most promoted or most suppressed tokens.

    `median`: its median rank from the most promoted, 0 the first. `chance`: the chance level of either share.
    """

    copies: float
    suppresses: float
    median: float
    chance: float
    num_words: int


@dataclass(eq=False)
class Circuits:
    """What all heads of a model share: norms, rotations, the vocabulary's vectors and their products, made once."""

    digest: str
    folds: list[NormFold]
    readouts: dict[str, Readout] = field(default_factory=dict[str, Readout])
    products: dict[tuple[str, str, str, bool], Products] = field(
        default_factory=dict[tuple[str, str, str, bool], Products]
    )
    words: Int64[ndarray, "words"] | None = None
    of_words: dict[tuple[str, Source, bool], Float[Tensor, "words m"]] = field(
        default_factory=dict[tuple[str, Source, bool], Tensor]
    )
    rotations: dict[str, Rotation | str] = field(default_factory=dict[str, Rotation | str])


_KNOWN: weakref.WeakKeyDictionary[nn.Module, Circuits] = weakref.WeakKeyDictionary()
"""Of each model while it lives; taken again where its weights are no longer what they were."""


def circuits_of(lm: LoadedModel) -> Circuits:
    """What heads of this model share. Cost: a digest of the weights where it is known. Errors: ModelError."""
    digest = lm.weights_sums
    known = _KNOWN.get(lm.model)
    if known is None or known.digest != digest:
        known = _KNOWN[lm.model] = Circuits(digest, folds_of(lm))
    return known


def require_tokens(lm: LoadedModel, site: Site) -> None:
    """Errors: ModelError for a layer whose stream holds no tokens, or leads to no logits."""
    name = f"{lm.name}: {site}"
    if site.stack == CROSS:
        raise ModelError(
            f"{name} is cross-attention, which reads the encoder's stream and writes to the decoder's: what it writes "
            f"for a token is not a product of its matrices. Ask for a head of the decoder's own attention."
        )
    if site.stack == VISION or sense_of(lm.model) != TEXT:
        raise ModelError(f"{name} reads pictures or sounds, so what its heads write is not a token.")
    if site.stack == "encoder":
        raise ModelError(
            f"{name} belongs to an encoder whose stream leads to no logits: ask for a head of the decoder, as "
            f"'decoder:L0H0'."
        )


@dataclass(eq=False)
class SiteCircuits:
    """One layer's heads over the vocabulary. Made by `of`; its methods take heads by their index."""

    lm: LoadedModel
    site: Site
    shared: Circuits
    matrices: HeadMatrices
    readout: Readout
    centred: bool

    @classmethod
    def of(cls, lm: LoadedModel, site: Site, shared: Circuits | None = None) -> SiteCircuits:
        """`shared`: of this model, where it is known already.

        Errors: ModelError where what the layer's heads write is no product of matrices, or no token.
        """
        require_tokens(lm, site)
        shared = circuits_of(lm) if shared is None else shared
        with torch.no_grad():
            fold = shared.folds[lm.spec.sites.index(site)]
            matrices = head_matrices(lm, site, fold, torch.float64, NO_WEIGHTS, passed=False)
            if site.stack not in shared.readouts:
                shared.readouts[site.stack] = readout_of(lm, site.stack)
        form = fold.reads["v"]
        centred = form is not None and form.centres and not fold.passes
        matrices = HeadMatrices(*(matrix.cpu() for matrix in matrices))
        return cls(lm, site, shared, matrices, shared.readouts[site.stack], centred)

    def products(self, left: Source, right: Source | None) -> Products:
        """Of two sources over the vocabulary, or (None) of one and what reads tokens out. Made once for a model."""
        place = (self.site.stack, left, right or "readout", self.centred)
        if place not in self.shared.products:
            self._sum_up(left if right is None else right)
        return self.shared.products[place]

    def vectors(self, source: Source, tokens: Sequence[int] | None = None) -> Float[Tensor, "v m"]:
        """What stands for tokens (None: for each), as the norm before the layer gives it but for its gain."""
        return self.normed(token_vectors(self.lm, self.site, source, self.readout, tokens))

    def _sum_up(self, source: Source) -> None:
        """Make all products of one source, whose vectors, as large as the embedding table, are not kept."""
        vectors, stack = self.vectors(source), self.site.stack
        own, read = centred_product(vectors, vectors), centred_product(self.readout.table, self.readout.table)
        made = {(source, "readout"): Products(centred_product(vectors, self.readout.table), own, read)}
        if source == "token":
            made["token", "token"] = Products(own, own, own)
            predicted = self.vectors("prediction")
            of_both, of_predicted = centred_product(predicted, vectors), centred_product(predicted, predicted)
            made["prediction", "token"] = Products(of_both, of_predicted, own)
        for (left, right), products in made.items():
            self.shared.products[stack, left, right, self.centred] = products
        self.shared.of_words[stack, source, self.centred] = vectors[torch.from_numpy(self._words())]

    def normed(self, x: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """Rows of the stream as the norm before the layer gives them, but for its gain."""
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        return x / x.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-12)

    @property
    def is_first(self) -> bool:
        """Whether it is its stack's first layer, which reads tokens before any feed-forward."""
        return self.site == next(site for site in self.lm.spec.sites if site.stack == self.site.stack)

    @torch.no_grad()
    def copying(self, head: int, source: Source) -> TraceShare:
        """The trace share of what a head writes of a token. Cost: a product over the vocabulary, once; f^3 * draws."""
        products = self.products(source, None)
        values, written = self.matrices.v[head][None], self.readout.before_table(self.matrices.o[head])[None]
        own = eigenvalue_score(values @ products.met @ written.transpose(1, 2))
        chance = eigenvalue_score(products.shuffled(values, written, DRAWS, torch.Generator().manual_seed(0)))
        return TraceShare(float(own), float(chance.square().mean().sqrt()))

    @torch.no_grad()
    def matching(self, head: int) -> tuple[dict[Matching, TraceShare], str]:
        """The trace share of what a head looks for, the mean over distances; nothing, and why, where not asked."""
        if self.is_first:
            return {}, f"{self.site} is the first layer, whose keys have not passed its feed-forward: not asked"
        try:
            if not self.shared.rotations:
                self.shared.rotations |= rotations_of(self.lm, self.shared.folds, max(DISTANCES))
            self.products("token", "token")
        except ModelError as error:  # a model of fewer positions, or without a vector for a token past its first block
            return {}, str(error)
        rotation = self.shared.rotations[str(self.site)]
        if isinstance(rotation, str):
            return {}, rotation
        distances = DISTANCES if rotation.turns_at_all else (0,)
        q, k, result = self.matrices.q[head][None], self.matrices.k[head][None], dict[Matching, TraceShare]()
        for name, source in MATCHING.items():
            products = self.products(source, "token")
            own = q @ products.met @ k.transpose(1, 2)
            chance = products.shuffled(q, k, DRAWS, torch.Generator().manual_seed(0))
            turned = [
                torch.stack([eigenvalue_score(rotation.turned(x, distance)) for distance in distances]).mean(0)
                for x in (own, chance)
            ]
            result[name] = TraceShare(float(turned[0]), float(turned[1].square().mean().sqrt()))
        if not rotation.turns_at_all:
            return result, "queries and keys are not turned by position: the same at every distance"
        return result, f"mean over distances {', '.join(map(str, distances))}"

    @torch.no_grad()
    def in_tokens(
        self, head: int, source: Source, ids: Sequence[int], count: int
    ) -> tuple[Ranks, list[tuple[int, Extremes, Extremes]]]:
        """How the sample's words fare in what a head writes of them; of some tokens what it promotes and suppresses.

        `ids`: of those tokens; none: the five words of which it writes most. Values are logits less their mean over the
        vocabulary. Cost: O((words + m) * f * v).
        """
        words, kind = self._words(), torch.float64 if self.lm.dtype == torch.float64 else torch.float32
        with exact_arithmetic():
            written = self.readout.before_table(self.matrices.o[head])
            to_tokens = written.to(kind) @ self.readout.table.to(kind).T
            read = self._of_words(source).double() @ self.matrices.v[head].T
            if ids:
                rows = self.vectors(source, ids).double() @ self.matrices.v[head].T
            else:
                longest = (read @ written).norm(dim=-1).topk(min(EXAMPLES, len(words))).indices
                ids, rows = words[longest.numpy()].tolist(), read[longest]
            logits = rows.to(kind) @ to_tokens
            high, low = _ranks(read.to(kind), to_tokens, words)
        ranks = Ranks(
            copies=float((high < MOST).mean()),
            suppresses=float((low < MOST).mean()),
            median=float(np.median(high)),
            chance=min(1.0, MOST / to_tokens.shape[1]),
            num_words=len(words),
        )
        logits = logits - logits.mean(-1, keepdim=True)
        ends = [(extremes(row, count), extremes(row, -count)) for row in logits]
        return ranks, [(token, *of_token) for token, of_token in zip(ids, ends, strict=True)]

    def _of_words(self, source: Source) -> Float[Tensor, "words m"]:
        """The sample's vectors, made once for a model and source."""
        self.products(source, None)
        return self.shared.of_words[self.site.stack, source, self.centred]

    def _words(self) -> Int64[ndarray, "words"]:
        """Tokens that are whole words, drawn once: the same for every head."""
        if self.shared.words is None:
            self.shared.words = whole_words(self.lm, WORDS)
        return self.shared.words


def _ranks(
    read: Float[Tensor, "n f"], to_tokens: Float[Tensor, "f v"], words: Int64[ndarray, "n"]
) -> tuple[Float64[ndarray, "n"], Float64[ndarray, "n"]]:
    """The rank of each word's own logit in its row, from the largest and from the smallest."""
    own = (read * to_tokens[:, words].T).sum(-1)
    above, below = np.zeros((2, len(words)))
    # A part of the vocabulary at a time: of all of it, making room takes longer than multiplying.
    for begin in range(0, to_tokens.shape[1], CHUNK_TOKENS):
        logits = read @ to_tokens[:, begin : begin + CHUNK_TOKENS]
        inside = np.flatnonzero((words >= begin) & (words < begin + CHUNK_TOKENS))
        logits[inside, words[inside] - begin] = own[inside]  # the same number, to its last digit
        for row, (numbers, number) in enumerate(zip(logits.numpy(), own.numpy(), strict=True)):
            # NumPy counts a row's bits twenty times as fast as torch adds them up.
            above[row] += np.count_nonzero(numbers > number)
            below[row] += np.count_nonzero(numbers < number)
    # A head that writes nothing gives all tokens one logit: the middle of those that are alike is the rank.
    alike = (to_tokens.shape[1] - above - below - 1) / 2
    return above + alike, below + alike


def extremes(row: Float[Tensor, "v"], count: int) -> Extremes:
    """The tokens with the largest numbers, first the largest; of a count below 0 those with the smallest."""
    top = row.topk(min(abs(count), len(row)), largest=count > 0)
    return list(zip(top.indices.tolist(), top.values.tolist(), strict=True))


def whole_words(lm: LoadedModel, count: int) -> Int64[ndarray, "words"]:
    """Tokens that are whole words of three letters or more, drawn by a fixed seed; any tokens where there are none."""
    size = vocabulary_size(lm)
    pieces = [""] * size
    if lm.tokenizer is not None:
        for piece, index in lm.tokenizer.get_vocab().items():
            if index < size:
                pieces[index] = piece
    begins = [piece.startswith(BLANKS) for piece in pieces]
    # Vocabularies that mark continuations instead (##ing) have words without a mark.
    words = [
        index
        for index, piece in enumerate(pieces)
        if (begins[index] or not any(begins)) and WORD.fullmatch(piece[1:] if begins[index] else piece)
    ]
    words = words or list(range(size))
    return np.sort(np.random.default_rng(0).choice(words, min(count, len(words)), replace=False)).astype(np.int64)


def named(lm: LoadedModel, index: int) -> str:
    """A token as people read it."""
    return f"token {index}" if lm.tokenizer is None else spelled(lm.tokenizer, index)
