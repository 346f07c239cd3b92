"""Texts of random tokens that repeat: what the probe for induction is made of, and its published variants.

Random tokens have no grammar and no meaning: what a head finds in their repetition it finds by matching. They are drawn
without the most common and the rarest (by id: vocabularies are built from the frequent to the rare) and without special
tokens, all different within a repeat. Beside each repeated text lies a control of the same shape, whose tokens are
drawn anew for every repeat: a head that looks back by a fixed distance scores there as well.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.errors import ModelError, StatisticError
from manyheads.recording.tokens import Tokens, data_seed

LATEST, SUM, ENTRIES = "latest", "sum", "entries"
COUNTS = {
    LATEST: "weight on the latest earlier copy alone, mean over rows",
    SUM: "weight summed over all earlier copies, mean over rows",
    ENTRIES: "mean over all pairs of a row and an earlier copy",
}
VOCABULARY = (0.1, 0.9)  # which ids are drawn from, as shares of the vocabulary


@dataclass(frozen=True)
class Repeats:
    """A way to probe: `length` tokens, `repeats` times, after the model's start token (`start`) or not.

    `count` says what a row's score is where there are several earlier copies: one of `COUNTS`.
    """

    length: int
    repeats: int
    start: bool
    count: str
    source: str = "your own"

    def __post_init__(self) -> None:
        if self.length < 2 or self.repeats < 2:
            raise StatisticError(
                f"length={self.length}, repeats={self.repeats}: the probe needs at least 2 tokens, at least 2 times."
            )
        if self.count not in COUNTS:
            raise StatisticError(f"count={self.count!r} is no way to count earlier copies: use {', '.join(COUNTS)}.")

    def __str__(self) -> str:
        start = "after a start token" if self.start else "without a start token"
        return f"{self.length} random tokens {self.repeats} times, {start}; {COUNTS[self.count]} ({self.source})"


VARIANTS = {
    "arena": Repeats(50, 2, True, LATEST, "ARENA; its mean has two rows more, which have no copy"),
    "mlxterp": Repeats(50, 2, False, LATEST, "mlxterp"),
    "olsson": Repeats(25, 4, True, SUM, "Olsson et al. 2022, prefix matching, summed over earlier repeats"),
    "olsson-entries": Repeats(25, 4, True, ENTRIES, "Olsson et al. 2022, prefix matching, mean of entries"),
}
"""Published probes. Olsson et al. do not say whether a row's entries are summed or averaged: both are here."""


def variant_of(variant: str | Repeats, length: int | None, repeats: int | None) -> Repeats:
    """A variant by name or in hand, with another length or number of repeats where these are given."""
    if isinstance(variant, str):
        if variant not in VARIANTS:
            near = difflib.get_close_matches(variant, VARIANTS, 2) or list(VARIANTS)
            raise StatisticError(f"there is no variant {variant!r} of this probe: did you mean {' or '.join(near)}?")
        variant = VARIANTS[variant]
    changed = {key: value for key, value in (("length", length), ("repeats", repeats)) if value is not None}
    if any(getattr(variant, key) != value for key, value in changed.items()):
        variant = replace(variant, **changed, source=f"after {variant.source}")
    return variant


@dataclass(frozen=True, eq=False)
class Sample:
    """The texts: `tokens`, repeated ones first, then as many controls; a seed for each pair; the draw in words."""

    tokens: Tokens
    seeds: tuple[int, ...]
    because: str


def sample(lm: Any, variant: Repeats, samples: int, seed: int, between: tuple[float, float]) -> Sample:
    """Draw the texts. Errors: ModelError for a model without a vocabulary, StatisticError for what does not fit it."""
    if samples < 1:
        raise StatisticError(f"{samples=}: draw at least one text.")
    ids = _vocabulary(lm, between)
    if len(ids) < variant.length:
        raise StatisticError(
            f"length={variant.length} different tokens cannot be drawn: {lm.name} has {len(ids)} ordinary ones between "
            f"{between[0]:.0%} and {between[1]:.0%} of its vocabulary. Give a smaller length=, or a wider between=."
        )
    before, after, said = _frame(lm) if variant.start else ((), (), "")
    longest = len(before) + variant.length * variant.repeats + len(after)
    if lm.max_positions is not None and longest > lm.max_positions:
        raise StatisticError(
            f"{variant.length} tokens {variant.repeats} times are {longest} positions, but {lm.name} has "
            f"{lm.max_positions}: give a smaller length= or fewer repeats=."
        )
    generator = torch.Generator().manual_seed(seed)

    def block() -> Tensor:
        return ids[torch.randperm(len(ids), generator=generator)[: variant.length]]

    repeated = [block().repeat(variant.repeats) for _ in range(samples)]
    control = [torch.cat([block() for _ in range(variant.repeats)]) for _ in range(samples)]
    frame = [torch.tensor(side, dtype=torch.long) for side in (before, after)]
    whole = torch.stack([torch.cat([frame[0], each, frame[1]]) for each in repeated + control])
    special = torch.zeros_like(whole, dtype=torch.bool)
    special[:, : len(before)], special[:, longest - len(after) :] = True, True
    lengths, offsets = torch.full((2 * samples,), longest), torch.zeros(*whole.shape, 2, dtype=torch.long)
    seeds = tuple(data_seed(each.numpy().tobytes()) for each in repeated)
    drawn = f"{len(ids):,} ids between {between[0]:.0%} and {between[1]:.0%} of the vocabulary, no special ones"
    return Sample(Tokens(lengths, whole, special=special, offsets=offsets), seeds, f"{drawn}{said}")


def _vocabulary(lm: Any, between: tuple[float, float]) -> Int[Tensor, "ids"]:
    """Ordinary ids in the middle of the vocabulary."""
    low, high = between
    if not 0 <= low < high <= 1:
        raise StatisticError(f"{between=}: give two shares of the vocabulary, as (0.1, 0.9).")
    known = [lm.spec.vocab_size, None if lm.tokenizer is None else len(lm.tokenizer)]
    sizes = [size for size in known if size]
    if not sizes:
        raise ModelError(f"{lm.name} has no vocabulary to draw random tokens from: the probe is for models of text.")
    size = min(sizes)  # embeddings are often padded past the last token that there is
    special = set(getattr(lm.tokenizer, "all_special_ids", ()))
    return torch.tensor([i for i in range(int(low * size), int(high * size)) if i not in special], dtype=torch.long)


def added_around(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that a tokenizer adds before a text, and behind it."""
    got = tokenizer("a", return_special_tokens_mask=True)
    ids, added = list(got["input_ids"]), [bool(each) for each in got["special_tokens_mask"]]
    begin = added.index(False) if False in added else len(ids)
    end = begin + added[begin:].index(True) if True in added[begin:] else len(ids)
    return tuple(ids[:begin]), tuple(ids[end:])


def _frame(lm: Any) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """What stands before and behind a text, and that in words: what the tokenizer adds, else its beginning of text."""
    if lm.tokenizer is None:
        return (), (), "; no start token, for want of a tokenizer"
    before, after = added_around(lm.tokenizer)
    bos = getattr(lm.tokenizer, "bos_token_id", None)
    if not before and bos is not None:
        before = (int(bos),)
    if not before:
        return before, after, "; no start token: this tokenizer has none"
    names = " ".join(map(str, lm.tokenizer.convert_ids_to_tokens(list(before))))
    return before, after, f"; the start token is {names}"
