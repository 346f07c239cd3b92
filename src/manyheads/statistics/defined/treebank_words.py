"""A treebank's words laid on a batch's tokens, and which word each word looks at most: for syntax and coreference.

Attention to a word is the sum over its tokens, from a word the mean over them (Clark et al. 2019, section 4.1). A word
never counts as looking at itself. Which key wins is decided in three ways, since each alone can mislead:

- `given`: the strongest other word, whatever special tokens get;
- `free`: the same where nothing outside the words gets more (a special token, mostly): else none;
- `normed`: free, with each weight times what its value can move (Kobayashi et al. 2020).
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manyheads.attention import Mask
from manyheads.recording.exact_map import WordRows
from manyheads.statistics.statistic import Facts
from manyheads.texts import Gold, Tokens, words_of_tokens

POS = (
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM"),
    *("PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X"),
)
"""The universal parts of speech (Universal Dependencies, version 2); any other is none of them."""

NOWHERE = -1  # no word is looked at: the row sees no other one, or something outside the words wins


@dataclass(frozen=True, eq=False)
class GoldWords:
    """The gold words of a batch. `of_token[b, k]` is a token's word, -1 for none; `golds` each text's annotation."""

    tokens: Tokens
    golds: tuple[Gold | None, ...]
    of_token: Int[Tensor, "b k"]

    @staticmethod
    def of(tokens: Tokens) -> GoldWords:
        """The words by the tokens' gold and offsets. Texts without gold have no words."""
        golds = tokens.gold or (None,) * tokens.num_texts
        of_token = torch.full(tokens.real.shape, NOWHERE)
        for text, gold in enumerate(golds):
            if gold is None or not gold.words:
                continue
            assert tokens.offsets is not None
            length = int(tokens.lengths[text])
            spans = [(word.begin, word.end) for word in gold.words]
            offsets = [(begin, end) for begin, end in tokens.offsets[text, :length].tolist()]
            numbers = [word for word, _ in words_of_tokens(tokens.texts[text], spans, offsets)]
            of_token[text, :length] = torch.tensor(numbers)
        return GoldWords(tokens, golds, torch.where(tokens.ordinary, of_token, NOWHERE))

    @cached_property
    def num_words(self) -> int:
        """Of the text with most, at least 1. Words after the last one that has a token are left out."""
        return max(1, 1 + max(self.of_token.flatten().tolist(), default=0))

    @cached_property
    def member(self) -> Float[Tensor, "b k w"]:
        return (self.of_token[..., None] == torch.arange(self.num_words)).float()

    @cached_property
    def wide(self) -> Float[Tensor, "b k c"]:
        """`member`, and after the words a column for each token that is in none: one product sums up both."""
        outside = self.tokens.real & (self.of_token < 0) & self.present.any(1, keepdim=True)
        place = torch.where(outside, outside.cumsum(1) - 1, NOWHERE)
        most = max(1, 1 + max(place.flatten().tolist(), default=0))
        return torch.cat([self.member, (place[..., None] == torch.arange(most)).float()], -1)

    @cached_property
    def present(self) -> Bool[Tensor, "b w"]:
        """Words in which some token begins: the others can neither look nor be looked at."""
        return self.member.any(1)

    @cached_property
    def pos(self) -> Int[Tensor, "b w"]:
        """Each word's part of speech as its place in `POS`, -1 for none."""
        place = {name: number for number, name in enumerate(POS)}
        out = torch.full((len(self.golds), self.num_words), -1)
        for text, gold in enumerate(self.golds):
            named = [place.get(word.pos, -1) for word in gold.words][: self.num_words] if gold else []
            out[text, : len(named)] = torch.tensor(named, dtype=torch.long)
        return out

    def visible(self, mask: Mask) -> Bool[Tensor, "b w v"]:
        """Whether some token of word w may look at some token of another word v."""
        near = self.member.transpose(1, 2)
        if mask.dense is not None:
            visible = (near @ mask.dense.any(1).float() @ self.member) > 0
        else:
            key = torch.arange(self.member.shape[1])
            inside = (key >= mask.start[..., None]) & (key < mask.stop[..., None])
            visible = (near @ inside.float().expand(len(self.golds), -1, -1) @ self.member) > 0
        return visible & self.present[:, None] & self.present[..., None] & ~torch.eye(self.num_words, dtype=torch.bool)


@dataclass(frozen=True, eq=False)
class Looks:
    """For each head and word the word it looks at most, decided in three ways; and the word that looks at it most.

    `weights` are -inf where a word cannot see another one, and itself. `normed` and `received`, which few columns need,
    are computed when they are first read.
    """

    words: GoldWords
    visible: Bool[Tensor, "b w v"]
    weights: Float[Tensor, "b h w v"]
    given: Int[Tensor, "b h w"]
    free: Int[Tensor, "b h w"]
    by_norm: Callable[[], Int[Tensor, "b h w"]]

    @cached_property
    def normed(self) -> Int[Tensor, "b h w"]:
        return self.by_norm()

    @cached_property
    def received(self) -> Int[Tensor, "b h w"]:
        return _strongest(self.weights.transpose(2, 3))[0]


def gold_words(tokens: Tokens) -> Int[Tensor, "b k"]:
    return GoldWords.of(tokens).of_token


ROWS = WordRows(gold_words)


def looks(facts: Facts) -> Looks:
    """The looks of one layer, computed once for all its blocks.

    Cost: words x tokens for each head and text, so it is for texts of a treebank's length.
    """
    if "looks" in facts.of_layer:
        return facts.of_layer["looks"]

    def of_mask() -> tuple[GoldWords, Bool[Tensor, "b w v"], Float[Tensor, "b one w v"]]:
        """What depends on mask and tokens alone: words, who can see whom, and -inf to add where one cannot."""
        # The pass has laid the words on the tokens already: its shares say which token is in which word.
        shares = facts.reduced.plan.of_tokens(ROWS)
        of_token = torch.where(shares.sum(1) > 0, shares.argmax(1), NOWHERE)
        words = GoldWords(facts.tokens, facts.tokens.gold or (None,) * facts.tokens.num_texts, of_token)
        visible = words.visible(facts.reduced.mask)
        return words, visible, torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)[:, None]

    words, visible, unseen = facts.cached("gold words", of_mask)
    rows = facts.reduced[ROWS].float()
    weights, beside = _summed(rows, words, unseen)
    strongest, best = _strongest(weights)
    free = torch.where(beside > best, NOWHERE, strongest)

    norms = (
        facts.value_norms
    )  # not `facts`, which hold these looks: a circle keeps every layer's maps until it is found

    def by_norm() -> Int[Tensor, "b h w"]:
        if norms is None:
            return free  # where nothing is known of the values, as for a recording
        moved, beside = _summed(rows * norms[:, :, None], words, unseen)
        most, best = _strongest(moved)
        return torch.where(beside > best, NOWHERE, most)

    facts.of_layer["looks"] = Looks(words, visible, weights, strongest, free, by_norm)
    return facts.of_layer["looks"]


def _summed(
    rows: Float[Tensor, "b h w k"], words: GoldWords, unseen: Float[Tensor, "b one w v"]
) -> tuple[Float[Tensor, "b h w v"], Float[Tensor, "b h w"]]:
    """The weight of each word in each row, -inf where it is not seen, and the most that a token of no word has."""
    sums = (rows.flatten(1, 2) @ words.wide).unflatten(1, rows.shape[1:3])
    return sums[..., : words.num_words] + unseen, sums[..., words.num_words :].amax(-1)


def _strongest(weights: Float[Tensor, "b h w v"]) -> tuple[Int[Tensor, "b h w"], Float[Tensor, "b h w"]]:
    best, word = weights.max(-1)
    return torch.where(best > -torch.inf, word, NOWHERE), best
